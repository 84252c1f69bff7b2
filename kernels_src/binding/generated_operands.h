// Stand-in for what the generator writes: which operands of the element-wise operations have the output's shape, here
// none.
#pragma once

namespace tconv {

constexpr unsigned kTensorOperands = 0;  // bit i: operand i

}  // namespace tconv
