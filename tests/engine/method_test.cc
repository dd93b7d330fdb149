// Method: its text form, its defaults and what it refuses.
#include "engine/generation/method.h"

#include <gtest/gtest.h>

#include "kernels/check.h"

namespace weft {
namespace {

std::string method_refusal(const std::string& text) {
  try {
    parse_method(text, "--method");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "";
}

Method resolved(const std::string& text, int64_t latents, int64_t trained, double shift = 3) {
  return resolve_method(parse_method(text, "--method"),
                        {.latents = latents, .trained_latents = trained, .flow_shift = shift});
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
  const Method clips = parse_method("clips:window=8,bias=1e1", "");
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
  for (const auto& [text, message] : faults)
    EXPECT_NE(method_refusal(text).find(message), std::string::npos) << method_refusal(text);
}

TEST(Method, AutoGoesByTheTrainedLengthAlone) {
  EXPECT_EQ(resolved("auto", 16, 16).kind, MethodKind::kFull);
  EXPECT_EQ(resolved("auto", 17, 16).kind, MethodKind::kQueue);
  EXPECT_EQ(resolved("full", 400, 16).kind, MethodKind::kFull);
}

TEST(Method, DefaultsOfTheQueueFillTheTrainedLength) {
  EXPECT_EQ(to_string(resolved("queue", 100, 21)), "queue:block=9,context=6");
  EXPECT_EQ(to_string(resolved("queue", 100, 16)), "queue:block=8,context=4");
  EXPECT_EQ(to_string(resolved("queue:context=3", 100, 21)), "queue:block=15,context=3");
  EXPECT_EQ(to_string(resolved("queue:block=4", 100, 21)), "queue:block=4,context=4");
  for (int64_t trained = 1; trained < 64; ++trained) {
    const Method queue = resolved("queue", 100, trained);
    EXPECT_LE(*queue.block + 2 * *queue.context, trained);
    EXPECT_LE(*queue.context, *queue.block);
  }
}

TEST(Method, DefaultsOfClipsFollowTheShift) {
  const Method clips = resolved("clips", 60, 21);
  EXPECT_EQ(clips.window, 10);
  EXPECT_EQ(clips.global, 4);
  EXPECT_EQ(clips.trained, 21);
  EXPECT_EQ(clips.bias, 10.0);
  EXPECT_EQ(clips.stale, 0);
  EXPECT_EQ(clips.warmup, 0);
  EXPECT_NEAR(*clips.global_sigma, 0.909, 5e-4);
  EXPECT_NEAR(*resolved("clips", 60, 21, 5).global_sigma, 0.944, 5e-4);
  EXPECT_EQ(resolved("clips:stale=1", 60, 21).warmup, 2);
  EXPECT_THROW(resolved("clips:global=61", 60, 21), Error);
}

TEST(Method, PatchesAreAsEvenAsTheirUnitsAllow) {
  const std::array<int64_t, 3> grid{3, 5, 4};
  const auto displaced = [&](const std::string& text) {
    const Method method = resolve_method(parse_method(text, ""), {.latents = 3, .grid = grid});
    return *stale_patches_of(method, grid, 12).displaced;
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

}  // namespace
}  // namespace weft
