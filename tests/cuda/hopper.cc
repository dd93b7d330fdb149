// Emulates what compute capability 9.0 adds to a block: mbarriers, the copy engine and wgmma.
// Copies and multiplications happen as late as possible.
#include "kernels/cuda/hopper.cuh"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "tests/cuda/machine.h"

namespace weft::emulated {

namespace {

struct BulkCopy {
  void* shared;
  const void* global;
  int bytes;
};

struct Barrier {
  int arrivals = 0, arrived = 0, phase = 0;
  int64_t missing = 0;  // bytes
  std::vector<BulkCopy> copies;

  void end_phase_if_complete() {
    if (arrived < arrivals || missing > 0) return;
    arrived = 0;
    ++phase;
  }
};

// One wgmma in flight, as one thread sees it: its rows of a and of c.
struct Wgmma {
  float (*c)[64];
  std::array<float, 64> start;
  bool add, in_registers;
  int element_bytes;
  uint8_t a[2][32];
  uint64_t a_rows, b;
};

struct Wgmmas {
  std::deque<Wgmma> all;
  std::deque<size_t> groups;
  size_t open = 0;
};

// The state of the running block.
struct Hopper {
  uint64_t block = 0;
  std::map<const uint64_t*, Barrier> barriers;
  std::map<int, Barrier> named;
  std::map<int, Wgmmas> wgmmas;  // by thread
};

Hopper& hopper() {
  static auto* made = new Hopper;
  if (made->block != block_number()) {
    made->block = block_number();
    made->barriers.clear();
    made->named.clear();
    made->wgmmas.clear();
  }
  return *made;
}

Barrier& barrier_at(const uint64_t* at) {
  const auto found = hopper().barriers.find(at);
  if (found == hopper().barriers.end()) device_fault("a barrier that was not initialised");
  return found->second;
}

struct Waiting {
  Barrier* barrier;
  int parity;
  bool over() const { return (barrier->phase & 1) != parity; }
};

// Reads row `row` of a wgmma descriptor, 32 bytes.
void read_row(uint64_t descriptor, int row, uint8_t (&out)[32]) {
  const auto start = static_cast<unsigned>(descriptor & 0x3fff) << 4;
  const auto eight_rows = static_cast<unsigned>(descriptor >> 32 & 0x3fff) << 4;
  if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0 || start % 1024 >= 128)
    device_fault("rows of a wgmma that do not begin at a multiple of 1024 bytes");
  for (unsigned i = 0; i < 32; ++i) {
    unsigned at = start + static_cast<unsigned>(row) / 8 * eight_rows +
                  static_cast<unsigned>(row) % 8 * 128 + i;
    at ^= (at >> 7 & 7) << 4;
    out[i] = shared_byte(at);
  }
}

using RowValues = std::array<float, 32>;  // the first 32 or 16

RowValues row_values_of(const uint8_t (&bytes)[32], int element_bytes) {
  RowValues values{};
  for (int i = 0; i < 32 / element_bytes; ++i)
    values[i] = element_bytes == 1
                    ? from_e4m3(bytes[i])
                    : to_float(bf16{static_cast<uint16_t>(bytes[2 * i] | bytes[2 * i + 1] << 8)});
  return values;
}

// One instruction's sum of e4m3 products and the accumulator, as Hopper's tensor cores add
// (DeepSeek-V3, arXiv 2412.19437, 3.3.2): every term is cut, toward zero, to 13 bits of fraction at
// the exponent of the largest, and the sum of these is exact.
float add_e4m3(float start, const RowValues& a, const RowValues& b) {
  float terms[33] = {start}, largest = std::fabs(start);
  for (int k = 0; k < 32; ++k) {
    terms[k + 1] = a[k] * b[k];
    largest = std::max(largest, std::fabs(terms[k + 1]));
  }
  double sum = 0;
  if (largest == 0 || !std::isfinite(std::accumulate(std::begin(terms), std::end(terms), 0.0f)))
    return std::accumulate(std::begin(terms), std::end(terms), 0.0f);
  const double unit = std::ldexp(1.0, std::ilogb(largest) - 13), units = 1 / unit;
  for (const float term : terms) sum += std::trunc(term * units);
  return static_cast<float>(sum * unit);
}

void finish_wgmma(Wgmma& wgmma, int row) {
  if (!wgmma.in_registers) {
    read_row(wgmma.a_rows, row, wgmma.a[0]);
    read_row(wgmma.a_rows, row + 8, wgmma.a[1]);
  }
  const RowValues a[2] = {row_values_of(wgmma.a[0], wgmma.element_bytes),
                          row_values_of(wgmma.a[1], wgmma.element_bytes)};
  for (int n = 0; n < 16; ++n)
    for (int c = 0; c < 2; ++c) {
      uint8_t bytes[32];
      read_row(wgmma.b, 8 * n + lane() % 4 * 2 + c, bytes);
      const RowValues b = row_values_of(bytes, wgmma.element_bytes);
      for (int h = 0; h < 2; ++h) {
        float& to = (*wgmma.c)[4 * n + 2 * h + c];
        const float start = wgmma.add ? to : 0;
        to = wgmma.element_bytes == 1
                 ? add_e4m3(start, a[h], b)
                 : start + std::inner_product(&a[h][0], &a[h][16], &b[0], 0.0f);
      }
    }
}

struct Fragment {
  const uint32_t* mine;
  uint8_t a[2][32];
};

// Gives every thread its two rows of a, from the four threads that hold them.
void spread_rows(void* const (&arguments)[32], uint32_t) {
  for (int t = 0; t < 32; ++t) {
    auto* to = static_cast<Fragment*>(arguments[t]);
    for (int i = 0; i < 4; ++i) {
      const uint32_t* from = static_cast<Fragment*>(arguments[t / 4 * 4 + i])->mine;
      for (int part = 0; part < 4; ++part)
        for (int byte = 0; byte < 4; ++byte)
          to->a[part % 2][part / 2 * 16 + 4 * i + byte] =
              static_cast<uint8_t>(from[part] >> 8 * byte);
    }
  }
}

}  // namespace

void barrier_init(uint64_t* barrier, int arrivals) {
  if (reinterpret_cast<uintptr_t>(barrier) % 8) device_fault("a barrier that is not aligned");
  hopper().barriers[barrier] = {};
  hopper().barriers[barrier].arrivals = arrivals;
}

void barrier_arrive(uint64_t* at, int bytes) {
  Barrier& barrier = barrier_at(at);
  if (barrier.arrived == barrier.arrivals) device_fault("more arrivals than a barrier expects");
  ++barrier.arrived;
  barrier.missing += bytes;
  barrier.end_phase_if_complete();
}

void barrier_wait(uint64_t* at, int parity) {
  Waiting waiting{&barrier_at(at), parity};
  if (waiting.over()) return;
  wait_until(
      "barrier_wait",
      [](void* argument) {
        const auto* self = static_cast<Waiting*>(argument);
        Barrier& barrier = *self->barrier;
        if (self->over()) return true;
        for (const BulkCopy& copy : barrier.copies) {
          std::memcpy(copy.shared, copy.global, static_cast<size_t>(copy.bytes));
          barrier.missing -= copy.bytes;
        }
        barrier.copies.clear();
        barrier.end_phase_if_complete();
        return self->over();
      },
      &waiting);
}

void named_barrier_arrive(int number, int threads, bool wait) {
  if (number < 1 || number > 15) device_fault("a named barrier that is not one of 1 to 15");
  Barrier& barrier = hopper().named[number];
  if (barrier.arrived > 0 && barrier.arrivals != threads)
    device_fault("a named barrier with two numbers of threads");
  barrier.arrivals = threads;
  Waiting waiting{&barrier, barrier.phase & 1};
  ++barrier.arrived;
  barrier.end_phase_if_complete();
  if (!wait || waiting.over()) return;
  wait_until(
      "a named barrier",
      [](void* argument) { return static_cast<const Waiting*>(argument)->over(); }, &waiting);
}

void copy_bulk(void* shared, const void* global, int bytes, uint64_t* barrier) {
  if (reinterpret_cast<uintptr_t>(shared) % 16 || reinterpret_cast<uintptr_t>(global) % 16 ||
      bytes % 16)
    device_fault("copy_bulk of addresses or bytes that are not multiples of 16");
  if (where(shared) == Where::kDevice || where(global) != Where::kDevice)
    device_fault("copy_bulk that is not from global to shared memory");
  std::memset(shared, 0xff, static_cast<size_t>(bytes));
  barrier_at(barrier).copies.push_back({shared, global, bytes});
}

void wgmma_multiply(float (&c)[64], const uint32_t* a, uint64_t a_rows, uint64_t b, bool add,
                    int element_bytes) {
  if (blockDim.x % 128) device_fault("a wgmma in a block without a whole warpgroup");
  Wgmma wgmma{.c = &c,
              .start = {},
              .add = add,
              .in_registers = a != nullptr,
              .element_bytes = element_bytes,
              .a = {},
              .a_rows = a_rows,
              .b = b};
  if (a) {
    Fragment fragment{.mine = a, .a = {}};
    collective(~0u, "a wgmma", spread_rows, &fragment, true);
    std::memcpy(wgmma.a, fragment.a, sizeof fragment.a);
  }
  Wgmmas& wgmmas = hopper().wgmmas[thread_number()];
  std::copy(std::begin(c), std::end(c), wgmma.start.begin());
  std::fill(std::begin(c), std::end(c), std::numeric_limits<float>::quiet_NaN());
  wgmmas.all.push_back(wgmma);
  ++wgmmas.open;
}

void wgmma_commit() {
  Wgmmas& wgmmas = hopper().wgmmas[thread_number()];
  wgmmas.groups.push_back(std::exchange(wgmmas.open, 0));
}

void wgmma_wait(int newest) {
  Wgmmas& wgmmas = hopper().wgmmas[thread_number()];
  const int row = thread_number() % 128 / 32 * 16 + lane() / 4;
  std::set<const void*> begun;
  while (wgmmas.groups.size() > static_cast<size_t>(newest)) {
    for (size_t i = wgmmas.groups.front(); i > 0; --i) {
      Wgmma& wgmma = wgmmas.all.front();
      // The first wgmma on these registers starts from the values that they had when it was issued.
      if (begun.insert(wgmma.c).second)
        std::copy(wgmma.start.begin(), wgmma.start.end(), std::begin(*wgmma.c));
      finish_wgmma(wgmma, row);
      wgmmas.all.pop_front();
    }
    wgmmas.groups.pop_front();
  }
  // No lane goes on before all have their results.
  collective(
      ~0u, "wgmma_wait", [](void* const(&)[32], uint32_t) {}, nullptr, true);
}

}  // namespace weft::emulated
