// Method: its text form, its defaults and what it refuses.
#include "engine/methods/method.h"

#include <gtest/gtest.h>

#include <functional>

#include "kernels/check.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

std::string refused_usage(const std::function<void()>& act) {
  return error_of(act, ErrorKind::kUsage);
}

Method resolved(const std::string& text, int64_t latents, int64_t trained, double shift = 3) {
  return resolve_method(parse_method(text, "--method"),
                        {.latents = latents, .trained_latents = trained, .flow_shift = shift});
}

std::string method_refusal(const std::string& text) {
  return refused_usage([&] { parse_method(text, "--method"); });
}

TEST(Method, ItsTextIsReadAsItIsWritten) {
  for (const char* text :
       {"auto", "full", "clips", "queue", "clips:window=8,global=4", "queue:block=9,context=6",
        "clips:window=0,global=2,trained=21,bias=2.5,global_sigma=0.909,stale=1,warmup=3",
        "distrifusion:patches=4,warmup=2,split=frames",
        "pcpp:patches=4,window=0.5,last_window=0.25,warmup=2,split=rows,code=fp8,resync=4",
        "distrifusion:patches=2,code=residual-fp8"})
    EXPECT_EQ(to_string(parse_method(text, "--method")), text);
  EXPECT_EQ(to_string(parse_method("queue:context=6,block=9", "")), "queue:block=9,context=6");
  const Clips clips = std::get<Clips>(parse_method("clips:window=8,bias=1e1", ""));
  EXPECT_EQ(clips.window, 8);
  EXPECT_EQ(clips.bias, 10.0);
  EXPECT_FALSE(clips.global);
}

TEST(Method, FaultsNameTheValueAndTheLegalOnes) {
  const std::pair<const char*, const char*> faults[] = {
      {"ful",
       "--method is 'ful', legal: auto, full, clips, queue, distrifusion, pcpp, pipefusion; did "
       "you mean "
       "full?"},
      {"", "legal: auto, full, clips, queue"},
      {"full:window=1", "but full has no numbers; legal: full"},
      {"clips:windw=8",
       "'windw=8' is no number of clips, legal: window, global, trained, bias, "
       "global_sigma, stale, warmup; did you mean window?"},
      {"queue:window=8", "'window=8' is no number of queue, legal: block, context"},
      {"clips:window", "'window' is no number of clips"},
      {"clips:", "legal after the colon: NAME=N"},
      {"queue:block=0", "block is 0, legal: 1 ... 4096; nearest: 1"},
      {"queue:block=2.5", "block is '2.5', legal: a whole number, 1 ... 4096"},
      {"queue:block=", "block is '', legal: a whole number"},
      {"queue:block=99999999999999999999", "legal: 1 ... 4096; nearest: 4096"},
      {"clips:bias=nan", "bias is 'nan', legal: a finite number, 0 ... 1000"},
      {"pcpp:split=columns", "split is 'columns', legal: rows|frames"},
      {"distrifusion:code=int4", "code is 'int4', legal: none|fp8|residual-fp8"},
      {"pipefusion:code=fp8", "'code=fp8' is no number of pipefusion, legal: "},
      {"distrifusion:window=1", "'window=1' is no number of distrifusion, legal: "},
      {"clips:stale=2", "stale is 2, legal: 0 ... 1; nearest: 1"},
  };
  for (const auto& [text, message] : faults) EXPECT_TRUE(contains(method_refusal(text), message));
}

TEST(Method, AutoGoesByTheTrainedLengthAlone) {
  EXPECT_TRUE(std::holds_alternative<Full>(resolved("auto", 16, 16)));
  EXPECT_TRUE(std::holds_alternative<Queue>(resolved("auto", 17, 16)));
  EXPECT_TRUE(std::holds_alternative<Full>(resolved("full", 400, 16)));
}

TEST(Method, DefaultsOfTheQueueFillTheTrainedLength) {
  EXPECT_EQ(to_string(resolved("queue", 100, 21)), "queue:block=9,context=6");
  EXPECT_EQ(to_string(resolved("queue", 100, 16)), "queue:block=8,context=4");
  EXPECT_EQ(to_string(resolved("queue:context=3", 100, 21)), "queue:block=15,context=3");
  EXPECT_EQ(to_string(resolved("queue:block=4", 100, 21)), "queue:block=4,context=4");
  for (int64_t trained = 1; trained < 64; ++trained) {
    const Queue queue = std::get<Queue>(resolved("queue", 100, trained));
    EXPECT_LE(*queue.segment + 2 * *queue.context, trained);
    EXPECT_LE(*queue.context, *queue.segment);
  }
}

TEST(Method, DefaultsOfClipsFollowTheShift) {
  const Clips clips = std::get<Clips>(resolved("clips", 60, 21));
  EXPECT_EQ(clips.window, 10);
  EXPECT_EQ(clips.global, 4);
  EXPECT_EQ(clips.trained, 21);
  EXPECT_EQ(clips.bias, 10.0);
  EXPECT_EQ(clips.stale, 0);
  EXPECT_EQ(clips.warmup, 0);
  EXPECT_NEAR(*clips.global_sigma, 0.909, 5e-4);
  EXPECT_NEAR(*std::get<Clips>(resolved("clips", 60, 21, 5)).global_sigma, 0.944, 5e-4);
  EXPECT_EQ(std::get<Clips>(resolved("clips:stale=1", 60, 21)).warmup, 2);
  EXPECT_THROW(resolved("clips:global=61", 60, 21), Error);
}

TEST(Method, PatchesAreAsEvenAsTheirUnitsAllow) {
  const std::array<int64_t, 3> grid{3, 5, 4};
  const auto displaced = [&](const std::string& text) {
    const Method method = resolve_method(parse_method(text, ""), {.latents = 3, .grid = grid});
    return *method->stale_patches(grid, 12).displaced;
  };
  EXPECT_EQ(displaced("distrifusion:patches=4").patches, (std::vector<int64_t>{16, 16, 16, 12}));
  EXPECT_EQ(displaced("pcpp:patches=2,split=frames").patches, (std::vector<int64_t>{40, 20}));
  EXPECT_EQ(displaced("distrifusion:patches=4").warmup, 4);
  EXPECT_FALSE(displaced("distrifusion:patches=4").widest());
  EXPECT_EQ(displaced("distrifusion:patches=4").code, WireCode::kNone);
  EXPECT_EQ(displaced("pcpp:patches=4,code=residual-fp8").code, WireCode::kResidualFp8);
  EXPECT_EQ(displaced("pcpp:patches=4").widest(), 0.3);
  // From the first displaced step, 2, to the last one, 11.
  const Displaced falling = displaced("pcpp:patches=4,window=1,last_window=0.1,warmup=2");
  EXPECT_EQ(falling.window_of(0), 1.0);
  EXPECT_EQ(falling.window_of(2), 1.0);
  EXPECT_NEAR(*falling.window_of(5), 0.7, 1e-12);
  EXPECT_NEAR(*falling.window_of(11), 0.1, 1e-12);
}

TEST(Method, TheQueueNamesTheNumberItsValueAndTheLegalOnes) {
  const auto why = [](int64_t block, int64_t context, int64_t unit = 1, int steps = 9) {
    Queue queue;
    queue.segment = block, queue.context = context;
    return refused_usage([&] { validate(queue, {.steps = steps, .token_frames = unit}); });
  };
  EXPECT_EQ(why(9, 6), "");
  EXPECT_EQ(why(9, 0), "");
  EXPECT_EQ(why(4, 5),
            "--method queue: context is 5; legal are 0 to 4, the latent frames of a block");
  EXPECT_EQ(why(0, 0), "--method queue: block is 0; legal are from 1 on");
  EXPECT_EQ(why(5, 2, 2), "--method queue: block is 5; legal are multiples of 2 from 2 on");
  EXPECT_TRUE(contains(why(9, 6, 1, 8), "steps is 8; legal are values from 9 on"));
}

TEST(Method, TheQueueCountsBlocksAndWarns) {
  Queue queue;
  queue.segment = 8, queue.context = 4;
  EXPECT_EQ(queue.segments(1), 1);
  EXPECT_EQ(queue.segments(12), 1);
  EXPECT_EQ(queue.segments(13), 2);
  EXPECT_EQ(queue.segments(257), 32);
  EXPECT_TRUE(
      queue.warnings({.steps = 12, .segments = 5, .stages = 4, .trained_frames = 16}).empty());
  EXPECT_TRUE(queue.warnings({.steps = 12, .segments = 1, .stages = 1}).empty());
  const auto lines =
      queue.warnings({.steps = 12, .segments = 4, .stages = 4, .trained_frames = 15});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(contains(lines[0], "sees 16 latent frames"));
  EXPECT_TRUE(contains(lines[1], "never longer than 4 blocks"));
}

// Refusals name the method, and those that go with the job.
TEST(Method, SaysWhatItDoesNotGoWith) {
  const auto why = [](const std::string& text, const MethodJob& job, int64_t resync = 0) {
    Method method = resolve_method(parse_method(text, ""),
                                   {.latents = 9, .trained_latents = 9, .grid = {9, 4, 4}});
    if (resync) method->resync = resync;
    return refused_usage([&] { validate(method, job); });
  };
  const MethodJob long_enough{.steps = 9};
  for (const char* text : {"full", "clips", "queue"})
    EXPECT_TRUE(
        contains(why(text, long_enough, 4),
                 "', but --resync-every is 4, and no patches are a step old; legal with it: "
                 "distrifusion, pcpp, pipefusion"));
  for (const char* text : {"distrifusion:patches=2", "pcpp:patches=2", "pipefusion"}) {
    EXPECT_EQ(why(text, long_enough, 4), "");
    EXPECT_EQ(why(text, {.steps = 9, .joint = "flux"}), "");
    EXPECT_TRUE(contains(why(text, {.steps = 8}), "9 steps or more, or an exact method: full"));
  }
  for (const char* text : {"full", "clips", "pipefusion"}) {
    EXPECT_TRUE(contains(why(text, {.steps = 9, .scheduled = true}),
                         "', but a prompt schedule needs blocks that follow each other; legal with "
                         "it: queue"));
    EXPECT_TRUE(
        contains(why(text, {.steps = 9, .endless = true}), "but an endless video needs blocks"));
  }
  EXPECT_EQ(why("queue", {.steps = 9, .scheduled = true, .endless = true}), "");
  EXPECT_EQ(why("full", {.steps = 1, .joint = "flux"}), "");
  for (const char* text : {"clips", "queue"})
    EXPECT_TRUE(contains(why(text, {.steps = 9, .joint = "flux"}),
                         "flux has its text among the tokens, which this method cannot split; "
                         "legal: full"));
}

}  // namespace
}  // namespace weft::test
