#pragma once
// A whole job of the ranks of a layout, which are threads: what it delivers, and why it is refused.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "engine/job/checkpoint.h"
#include "kernels/ops.h"
#include "parallel/transport/local.h"
#include "tests/engine/small_job.h"
#include "tests/support/error_of.h"

namespace weft::test {

inline GeneratorOptions reference_options() {
  GeneratorOptions options = options_of(DType::kF32);
  options.ops = &reference_ops();
  return options;
}

struct Delivered {
  RunResult result;
  std::vector<float> latents;
  bool stopped = false;
};

// One rank encodes the text, because sums over ranks are rounded otherwise. `changed` changes the
// root's options; every rank has a stop flag.
inline Delivered deliver(const Request& request, Layout layout,
                         const std::function<void(RunOptions&)>& changed = {},
                         const LocalOptions& local = {},
                         const GeneratorOptions& generator = reference_options(),
                         const std::string& model = kModel) {
  Delivered out;
  layout.text_ranks = 1;
  const std::atomic<bool> never{false};
  run_ranks(
      layout.ranks(),
      [&](Communicator& world) {
        LatentTap tap;
        RunOptions options;
        options.tap = &tap;
        options.stop = &never;
        if (world.rank() == 0 && changed) changed(options);
        try {
          RunResult result = Generator(model, generator, RankPlacement::of(world, layout))
                                 .run(request, nullptr, options);
          if (world.rank() != 0) return;
          out.result = std::move(result);
          out.latents = std::move(tap.latents);
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kStopped) << error.what();
          if (world.rank() == 0) out.stopped = true;
        }
      },
      local);
  return out;
}

inline Layout along(Axis axis, int count) {
  Layout layout;
  layout[axis] = count;
  return layout;
}

// Every legal layout of two to four ranks gives the latents of one rank in f32. Returns the
// layouts.
inline std::vector<Layout> expect_latents_of_one_rank(const Request& request,
                                                      const GeneratorOptions& options) {
  const auto latents = [&](const Layout& layout) {
    return deliver(request, layout, {}, {}, options).latents;
  };
  const std::vector<float> one = latents({});
  const Generator generator(kModel, options);
  const LayoutLimits limits = generator.layout_limits(generator.resolve(request));
  std::vector<Layout> layouts;
  for (int ranks = 2; ranks <= 4; ++ranks)
    for (const Layout& layout : legal_layouts(ranks, limits)) {
      if (layout[Axis::kData] > 1) continue;
      layouts.push_back(layout);
      EXPECT_LE(rel_l2(latents(layout), one), 1e-5)
          << to_string(request.method) << " " << to_string(layout);
    }
  return layouts;
}

inline std::string refusal(const std::function<void()>& body) {
  return error_of(body, ErrorKind::kUsage);
}

// The plan of a job predicts the most memory that it takes.
template <class Model = std::string>
void expect_planned_memory(const Request& asked, const GeneratorOptions& options,
                           const Model& model = kModel) {
  const size_t live = tensor_bytes_live();
  Generator generator(model, options);
  const Request request = generator.resolve(asked);
  const MemoryPlan plan = generator.plan(request);
  const auto measured =
      static_cast<double>(generator.run(request, nullptr).memory_high_water - live);
  EXPECT_NEAR(static_cast<double>(plan.high_water) / measured, 1.0, 0.05)
      << to_string(options.dtype) << ": " << plan.to_string() << ", measured " << measured;
}

// A second job of one generator sees nothing of the first, nor does one with full attention.
inline void expect_jobs_apart(const Request& request, const Request& full, const Layout& layout) {
  run_ranks(layout.ranks(), [&](Communicator& world) {
    Generator generator(kModel, options_of(DType::kF32), RankPlacement::of(world, layout));
    const std::string first = generator.run(request, nullptr).signature;
    EXPECT_EQ(generator.run(request, nullptr).signature, first);
  });
  Generator generator(kModel, options_of(DType::kF32)), other(kModel, options_of(DType::kF32));
  const std::string alone = other.run(full, nullptr).signature;
  EXPECT_NE(generator.run(request, nullptr).signature, alone);
  EXPECT_EQ(generator.run(full, nullptr).signature, alone);
}

}  // namespace weft::test
