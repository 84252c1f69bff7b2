// The operator of three dimensions: there is none. The generator puts operator_depth.h in this file's place where a
// solution has a transposed convolution of three dimensions.
#pragma once

#define TCONV_REGISTER_DEPTH(CALL)
