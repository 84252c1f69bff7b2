// The PTX instructions that the kernels' inline assembly is made of, under the names translate.py gives them.
// Semantics and fragments: PTX ISA.
#pragma once

#include "wgmma.h"

namespace emu {

// ---- Shared and global memory -------------------------------------------------------------------------------------

template <typename T>
inline void ld_shared_v4(T& x, T& y, T& z, T& w, uint32_t at) {
  T v[4];
  load_shared(v, at, 16, "ld.shared.v4");
  x = v[0], y = v[1], z = v[2], w = v[3];
}
template <typename T>
inline void ld_shared_v2(T& x, T& y, uint32_t at) {
  T v[2];
  load_shared(v, at, 8, "ld.shared.v2");
  x = v[0], y = v[1];
}
inline void ld_shared(float& x, uint32_t at) { load_shared(&x, at, 4, "ld.shared"); }
inline void ld_shared(uint32_t& x, uint32_t at) { load_shared(&x, at, 4, "ld.shared"); }
inline void ld_shared(uint16_t& x, uint32_t at) { load_shared(&x, at, 2, "ld.shared"); }
inline void st_shared_v4(uint32_t at, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  const uint32_t v[4] = {x, y, z, w};
  store_shared(at, v, 16, "st.shared.v4");
}
inline void st_shared_v4(uint32_t at, float x, float y, float z, float w) {
  const float values[4] = {x, y, z, w};
  store_shared(at, values, 16, "st.shared.v4");
}
template <typename T>
inline void st_shared_v2(uint32_t at, T x, T y) {
  const T v[2] = {x, y};
  store_shared(at, v, 8, "st.shared.v2");
}
inline void st_shared(uint32_t at, float x) { store_shared(at, &x, 4, "st.shared"); }
inline void st_shared(uint32_t at, uint16_t x) { store_shared(at, &x, 2, "st.shared"); }
inline void st_shared(uint32_t at, uint32_t x) { store_shared(at, &x, 4, "st.shared"); }
template <typename T>
void ld_global_v4(uint32_t& x, uint32_t& y, uint32_t& z, uint32_t& w, const T* from) {
  uint32_t v[4];
  std::memcpy(v, from, 16);
  x = v[0], y = v[1], z = v[2], w = v[3];
}
template <typename Word, typename T>
void ld_global_v2(Word& x, Word& y, const T* from) {
  Word v[2];
  std::memcpy(v, from, sizeof v);
  x = v[0], y = v[1];
}
inline void st_global_if_b32(unsigned wanted, void* to, unsigned value) {
  if (wanted != 0) std::memcpy(to, &value, 4);
}
inline void st_global_if_b16(unsigned wanted, void* to, unsigned short value) {
  if (wanted != 0) std::memcpy(to, &value, 2);
}
template <typename T>
void st_global_if(unsigned wanted, void* to, T value) {
  if (wanted != 0) std::memcpy(to, &value, sizeof value);
}

template <typename T>
void st_global(T* to, uint64_t x) {
  std::memcpy(to, &x, 8);
}
// All bits set: not written yet, and asked again and again. The others of this block have their turn, and may be stuck:
// other blocks run later.
template <typename T>
void ld_global(uint64_t& x, const T* from) {
  std::memcpy(&x, from, 8);
  if (x == ~uint64_t{0}) yield();
}

// To nearest, ties away from zero: the magnitude's bits, of which 13 are dropped. NaN is canonical.
inline void cvt_rna_tf32(uint32_t& d, float a) {
  uint32_t bits;
  std::memcpy(&bits, &a, sizeof(bits));
  d = a != a ? 0x7fffe000u : std::isinf(a) ? bits : (bits + 0x1000u) & 0xffffe000u;
}

// The nearest number, which the hardware's approximations are an ulp or two from.
inline void ex2_approx(float& y, float x) { y = std::exp2(x); }
inline void rcp_approx(float& y, float x) { y = 1.0f / x; }
inline void set_if_positive(float& y, float x) { y = x > 0.0f ? 1.0f : 0.0f; }
inline void max_nan(float& larger, float a, float b) { larger = a != a || b != b ? NAN : std::fmax(a, b); }

// ---- cp.async -----------------------------------------------------------------------------------------------------

inline void cp_async(uint32_t to, const void* from, uint32_t bytes = 16) {
  at_shared(to, 16, "cp.async");
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0)
    fail("cp.async of 16 bytes from global address %p, which is misaligned", from);
  if (bytes != 0 && bytes != 16) fail("cp.async of %u bytes of 16", bytes);
  async_copies[current].open.push_back({to, bytes == 0 ? nullptr : from, 16});
}
inline void cp_async_sized(uint32_t to, const void* from, uint32_t bytes) {
  if (bytes != 4 && bytes != 8 && bytes != 16) fail("cp.async of %u bytes", bytes);
  at_shared(to, bytes, "cp.async");
  if (reinterpret_cast<uintptr_t>(from) % bytes != 0)
    fail("cp.async of %u bytes from global address %p, which is misaligned", bytes, from);
  async_copies[current].open.push_back({to, from, bytes});
}
inline void make_copies(const std::vector<AsyncCopy>& copies) {
  static const unsigned char zeros[16] = {};
  for (const AsyncCopy& copy : copies)
    store_shared(copy.to, copy.from == nullptr ? zeros : copy.from, copy.bytes, "cp.async");
}
inline void cp_async_commit() {
  AsyncCopies& copies = async_copies[current];
  copies.groups.push_back(std::move(copies.open));
  copies.open.clear();
}
inline void cp_async_wait(int pending) {
  AsyncCopies& copies = async_copies[current];
  while (static_cast<int>(copies.groups.size()) > pending) {
    make_copies(copies.groups.front());
    copies.groups.pop_front();
  }
}

// ---- mbarriers, bulk copies ---------------------------------------------------------------------------------------

inline void mbarrier_init(uint32_t at, uint32_t arrivals) {
  at_shared(at, 8, "mbarrier.init");
  Mbarrier barrier;
  barrier.expected = barrier.pending = arrivals;
  if (detect_races) {
    barrier.gathering.clear();
    barrier.passed.clear();
  }
  mbarriers[at] = barrier;
}
inline void mbarrier_arrive(uint32_t at) {
  Mbarrier& barrier = mbarrier_at(at, "mbarrier.arrive");
  release(barrier.gathering);
  --barrier.pending;
  barrier.advance();
}
// cp.async.mbarrier.arrive.noinc: of a thread whose copies are awaited by no group.
inline void cp_async_arrive(uint32_t at) {
  make_copies(async_copies[current].open);
  async_copies[current].open.clear();
  mbarrier_arrive(at);
}
inline void mbarrier_arrive_expect(uint32_t at, uint32_t bytes) {
  mbarrier_at(at, "mbarrier.arrive.expect_tx").bytes += bytes;
  mbarrier_arrive(at);
}
inline void mbarrier_wait(uint32_t at, uint32_t parity) {
  Mbarrier& barrier = mbarrier_at(at, "mbarrier.try_wait");
  // The phase of this parity is over when the current one has the other.
  wait_until([&] { return (barrier.phase & 1) != parity; });
  acquire(barrier.passed);
}
inline void mbarrier_passed(uint32_t& passed, uint32_t at, uint32_t parity) {
  Mbarrier& barrier = mbarrier_at(at, "mbarrier.test_wait");
  passed = (barrier.phase & 1) != parity;
  if (passed) acquire(barrier.passed);
}
inline void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t at) {
  if (bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
    fail("cp.async.bulk of %u bytes from global address %p: both must be multiples of 16", bytes, from);
  store_shared(to, from, bytes, "cp.async.bulk");
  Mbarrier& barrier = mbarrier_at(at, "cp.async.bulk's mbarrier");
  release(barrier.gathering);
  barrier.bytes -= bytes;
  barrier.advance();
}
inline void bulk_store(void* to, uint32_t from, uint32_t bytes) {
  if (bytes % 16 != 0 || reinterpret_cast<uintptr_t>(to) % 16 != 0)
    fail("cp.async.bulk of %u bytes to global address %p: both must be multiples of 16", bytes, to);
  at_shared(from, bytes, "cp.async.bulk");
  note_read(from - kSharedBase, bytes);
  bulk_stores[current].open.push_back({to, from, bytes});
}
inline void bulk_commit() {
  BulkStores& stores = bulk_stores[current];
  stores.groups.push_back(std::move(stores.open));
  stores.open.clear();
}
inline void bulk_wait(int pending) {
  BulkStores& stores = bulk_stores[current];
  while (static_cast<int>(stores.groups.size()) > pending) {
    for (const BulkStore& store : stores.groups.front())
      load_shared(store.to, store.from, store.bytes, "cp.async.bulk");
    stores.groups.pop_front();
  }
}

// ---- mma.sync -----------------------------------------------------------------------------------------------------

inline void ldmatrix(uint32_t& r0, uint32_t& r1, uint32_t& r2, uint32_t& r3, uint32_t at) {
  uint32_t* const results[4] = {&r0, &r1, &r2, &r3};
  at_shared(at, 16, "ldmatrix");  // the row that this lane names
  exchange(at, [&](auto given) {
    for (int matrix = 0; matrix < 4; ++matrix)
      load_shared(results[matrix], given(8 * matrix + lane() / 4) + 4 * (lane() % 4), 4, "ldmatrix");
  });
}

// A lane has of each matrix values (2 (lane % 4), lane / 4) and the one a row below.
inline void ldmatrix_transposed(uint32_t& r0, uint32_t& r1, uint32_t& r2, uint32_t& r3, uint32_t at) {
  uint32_t* const results[4] = {&r0, &r1, &r2, &r3};
  at_shared(at, 16, "ldmatrix");  // the row that this lane names
  exchange(at, [&](auto given) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      uint16_t values[2];
      for (int i = 0; i < 2; ++i)
        load_shared(&values[i], given(8 * matrix + 2 * (lane() % 4) + i) + 2 * (lane() / 4), 2, "ldmatrix");
      *results[matrix] = values[0] | static_cast<uint32_t>(values[1]) << 16;
    }
  });
}

// A lane has rows 2 (lane % 4) and the next of column lane / 4, and stores the row whose place it gives.
inline void stmatrix_transposed(uint32_t at, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  struct Words {
    uint32_t of_matrix[4];
  };
  exchange(Words{{r0, r1, r2, r3}}, [&](auto given) {
    const int matrix = lane() / 8, row = lane() % 8;
    uint16_t values[8];
    for (int column = 0; column < 8; ++column)
      values[column] = static_cast<uint16_t>(given(column * 4 + row / 2).of_matrix[matrix] >> 16 * (row % 2));
    store_shared(at, values, 16, "stmatrix");
  });
}

struct Fragments {
  uint32_t a[4], b[2];
};

// value(bits, index): number `index` of a register that holds kPack numbers of K.
template <int kPack, typename Value>
void multiply_fragments(float& d0, float& d1, float& d2, float& d3, const Fragments& mine, Value&& value) {
  constexpr int kNumbers = 8 * kPack;  // of K
  float rows[2][kNumbers], columns[2][kNumbers];
  exchange(mine, [&](auto given) {
    for (int t = 0; t < 4; ++t) {
      const Fragments of_row = given(lane() / 4 * 4 + t);
      for (int part = 0; part < 2; ++part)
        for (int k = 0; k < kPack; ++k)
          for (int half = 0; half < 2; ++half)
            rows[half][(4 * part + t) * kPack + k] = value(of_row.a[2 * part + half], k);
      for (int e = 0; e < 2; ++e) {
        const Fragments of_column = given((2 * (lane() % 4) + e) * 4 + t);
        for (int part = 0; part < 2; ++part)
          for (int k = 0; k < kPack; ++k) columns[e][(4 * part + t) * kPack + k] = value(of_column.b[part], k);
      }
    }
  });
  for (int i = 0; i < kNumbers; ++i) {
    d0 += rows[0][i] * columns[0][i];
    d1 += rows[0][i] * columns[1][i];
    d2 += rows[1][i] * columns[0][i];
    d3 += rows[1][i] * columns[1][i];
  }
}
inline void mma_tf32(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                     uint32_t b0, uint32_t b1) {
  multiply_fragments<1>(d0, d1, d2, d3, {{a0, a1, a2, a3}, {b0, b1}},
                        [](uint32_t bits, int) { return __uint_as_float(bits & 0xFFFFE000u); });
}
inline void mma_f16(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                    uint32_t b0, uint32_t b1) {
  multiply_fragments<2>(d0, d1, d2, d3, {{a0, a1, a2, a3}, {b0, b1}},
                        [](uint32_t bits, int k) { return half_values[static_cast<uint16_t>(bits >> 16 * k)]; });
}
inline void mma_bf16(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                     uint32_t b0, uint32_t b1) {
  multiply_fragments<2>(d0, d1, d2, d3, {{a0, a1, a2, a3}, {b0, b1}},
                        [](uint32_t bits, int k) { return __uint_as_float(k == 0 ? bits << 16 : bits & 0xFFFF0000u); });
}
// Eight numbers of K: the half whose other half is zero.
inline void mma_f16_k8(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t b) {
  mma_f16(d0, d1, d2, d3, a0, a1, 0, 0, b, 0);
}
inline void mma_bf16_k8(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t b) {
  mma_bf16(d0, d1, d2, d3, a0, a1, 0, 0, b, 0);
}

}  // namespace emu

namespace emu {
template <typename Argument>
Argument argument(int64_t (*)(Argument));  // of a function; for decltype
}
