#include "apps/generate/output_name.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "apps/generate/request_flags.h"
#include "engine/runner/result_files.h"
#include "engine/runner/runner_settings.h"
#include "io/text/utf8.h"
#include "kernels/check.h"
#include "tests/support/error_of.h"

namespace weft {
namespace {

std::string name_refusal(const OutputChoice& choice) {
  try {
    return output_pattern(choice);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
}

TEST(OutputName, AFolderReceivesOneResultPerPrompt) {
  const auto pattern = [](const char* output, bool pictures, bool several, int64_t frames) {
    return output_pattern(
        {.output = output, .frames_as_pictures = pictures, .several = several, .frames = frames});
  };
  EXPECT_EQ(pattern("o/", false, true, 9), "o/{idx:05}.mp4");
  EXPECT_EQ(pattern("o/", false, true, 1), "o/{idx:05}.png");
  EXPECT_EQ(pattern("o/", false, false, 9), "o/{date}-{time}_{model}_{seed}.mp4");
  EXPECT_EQ(pattern("o/", true, true, 9), "o/{idx:05}/");
  EXPECT_EQ(pattern("o/", true, false, 1), "o/{date}-{time}_{model}_{seed}/");
  EXPECT_EQ(pattern("o/{prompt}/", false, true, 9), "o/{prompt}/{idx:05}.mp4");
}

TEST(OutputName, AnyOtherNameIsTheResults) {
  for (const char* name : {"a/b.mp4", "b.WEBM", "b.gif", "{seed}.mp4"})
    EXPECT_EQ(output_pattern({.output = name, .frames = 9}), name);
  EXPECT_EQ(output_pattern({.output = "a.png", .frames = 1}), "a.png");
  EXPECT_EQ(output_pattern({.output = "shot", .frames_as_pictures = true, .frames = 9}), "shot/");
  EXPECT_EQ(output_pattern({.output = "s{idx}", .frames_as_pictures = true, .several = true}),
            "s{idx}/");
}

TEST(OutputName, IllegalOutputsNameFlagValueAndLegalSet) {
  EXPECT_EQ(name_refusal({.output = "a.avi"}),
            "--output is 'a.avi', legal: a name ending in .mp4, .webm or .gif (a clip) or .png (a "
            "picture), or a folder ending in /, which receives one file per prompt");
  EXPECT_EQ(name_refusal({.output = "plain", .label = "-o"}).substr(0, 20), "-o is 'plain', legal");
  EXPECT_NE(name_refusal({.output = "/tmp"}).find("an existing folder; legal: /tmp/,"),
            std::string::npos);
  EXPECT_NE(name_refusal({.output = "a.png", .frames = 5}).find("--frames png"), std::string::npos);
  EXPECT_NE(
      name_refusal({.output = "a.gif", .frames_as_pictures = true}).find("folder of pictures"),
      std::string::npos);
  EXPECT_NE(name_refusal({.output = "a.mp4", .several = true}).find("a name with {idx}"),
            std::string::npos);
}

TEST(OutputName, FieldsExpand) {
  NameFields fields;
  fields.seed = 42;
  fields.model = "wan2.1 t2v";
  fields.prompt = "A cat, *running* on grass / under the very bright midday sun";
  fields.width = 832;
  fields.height = 480;
  fields.frames = 81;
  fields.index = 7;
  EXPECT_EQ(expand_name("{idx:05}.mp4", fields), "00007.mp4");
  EXPECT_EQ(expand_name("o/{model}_{seed}_{width}x{height}x{frames}.mp4", fields),
            "o/wan2.1_t2v_42_832x480x81.mp4");
  EXPECT_EQ(expand_name("{prompt:12}.mp4", fields), "A_cat_runnin.mp4");
  EXPECT_EQ(expand_name("{prompt}", fields).size(), 40u);
  EXPECT_EQ(expand_name("{prompt:99}", fields),
            "A_cat_running_on_grass_under_the_very_bright_midday_sun");
  EXPECT_EQ(expand_name("{prompt}", fields).find_first_of("*/ ,"), std::string::npos);
  fields.prompt = "???";
  EXPECT_EQ(expand_name("{prompt}", fields), "untitled");
}

TEST(OutputName, UnknownFieldsAreRefused) {
  EXPECT_THROW(expand_name("{sead}.mp4", {}), Error);
  EXPECT_THROW(expand_name("{seed", {}), Error);
  EXPECT_THROW(expand_name("{idx:x}", {}), Error);
}

// Every prompt and model name becomes one plain, visible component of a path.
TEST(OutputName, HostileTextStaysAPlainName) {
  const std::string nul("a\0b", 3), windows = "C:\\Users\\x";
  for (const std::string& text : {std::string(".."),
                                  std::string("../../etc/passwd"),
                                  std::string("/etc/passwd"),
                                  nul,
                                  std::string("."),
                                  std::string(".hidden"),
                                  std::string("-rf"),
                                  std::string("a/../../b"),
                                  std::string("%2e%2e%2fetc"),
                                  windows,
                                  std::string("a\nb"),
                                  std::string("~root"),
                                  std::string("$(reboot)"),
                                  std::string("trailing..."),
                                  std::string(4096, 'x'),
                                  std::string(4096, '.'),
                                  std::string("\xff\xfe\x80"),
                                  std::string("größer"),
                                  std::string("CON"),
                                  std::string("nul.txt"),
                                  std::string("Lpt1"),
                                  std::string()}) {
    NameFields fields;
    fields.prompt = fields.model = text;
    for (const char* field : {"{prompt}", "{prompt:5}", "{prompt:0}", "{model}"}) {
      const std::string name = expand_name(field, fields);
      EXPECT_FALSE(name.empty());
      EXPECT_LE(name.size(), 41u);
      EXPECT_EQ(name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                       "0123456789._-öß"),
                std::string::npos)
          << name;
      EXPECT_NE(name.front(), '.') << name;
      EXPECT_NE(name.front(), '-') << name;
      EXPECT_NE(name.back(), '.') << name;
    }
  }
  const auto named = [](const std::string& prompt) {
    NameFields fields;
    fields.prompt = prompt;
    return expand_name("{prompt}", fields);
  };
  EXPECT_EQ(named(".."), "untitled");
  EXPECT_EQ(named("../../etc/passwd"), "etc_passwd");
  EXPECT_EQ(named("CON"), "_CON");
  EXPECT_EQ(named("nul.txt"), "_nul.txt");
  EXPECT_EQ(named("com7"), "_com7");
  EXPECT_EQ(named("contact"), "contact");
  EXPECT_EQ(named("größer, 红色的球!"), "größer_红色的球");
  EXPECT_EQ(named("красный шар"), "красный_шар");
  EXPECT_EQ(named("लाल गेंद"), "लाल_गेंद");
  EXPECT_EQ(named("🎈🎈"), "untitled");
}

// 255 bytes are the most of a name; the hidden file of the checkpoint has 29 more.
TEST(OutputName, LongNamesAreCutAtACharacter) {
  NameFields fields;
  fields.index = 7;
  for (const std::string letter : {"x", "ö", "红", "𠀀"}) {
    std::string text;
    for (int i = 0; i < 300; ++i) text += letter;
    const auto cut = [&](const std::string& pattern) {
      const std::string path = expand_name(pattern, fields);
      const std::string name = std::filesystem::path(path).filename().string();
      EXPECT_GT(name.size(), 226 - letter.size()) << pattern;
      EXPECT_LE(name.size(), 226u) << pattern;
      EXPECT_EQ(encode_utf8(decode_utf8(name)), name);
      EXPECT_EQ(name.find("\ufffd"), std::string::npos) << name;
      return path;
    };
    EXPECT_TRUE(cut("o/" + text + ".MP4").ends_with(letter + ".MP4"));
    fields.prompt = text;
    EXPECT_TRUE(cut("o/{prompt:300}-{idx:05}.mp4").ends_with(letter + "-00007.mp4"));
    EXPECT_TRUE(cut("{prompt:999}.webm").ends_with(letter + ".webm"));
    EXPECT_LE(expand_name("{prompt:300}/a.mp4", fields).size(), 255u + 6);
    EXPECT_EQ(decode_utf8(expand_name("{prompt}.mp4", fields)).size(), 44u);
  }
  const std::string folder(300, 'n');
  EXPECT_EQ(expand_name(folder + "/a.mp4", fields), folder + "/a.mp4");
  EXPECT_EQ(expand_name("o/" + folder + "/", fields), "o/" + std::string(225, 'n') + "/");
}

TEST(OutputName, EveryEndingHasNamesOfItsOwn) {
  std::set<std::string> names;
  for (const std::string path : {"o/f.mp4", "o/f.MP4", "o/f.webm", "o/f.gif", "o/f.png", "o/f/"}) {
    const OutputNames files = output_names(path);
    for (const std::string& name : {files.sidecar, files.latents, files.checkpoint})
      EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_EQ(older_names(path).checkpoint, "o/f.checkpoint.safetensors");
  }
  EXPECT_EQ(output_names("o/f.mp4").sidecar, "o/f.mp4.json");
  EXPECT_EQ(output_names("o/f/").sidecar, "o/f.json");
}

TEST(OutputName, LinksDoNotLeadOutOfTheRoot) {
  namespace fs = std::filesystem;
  const std::string base = testing::TempDir() + "/weft_links_" + std::to_string(getpid());
  fs::create_directories(base + "/out/inside");
  fs::create_directories(base + "/elsewhere");
  fs::create_symlink(base + "/elsewhere", base + "/out/link");
  fs::create_symlink(base + "/out/inside", base + "/out/near");
  const auto path = [&](const std::string& pattern, const std::string& prompt) {
    NameFields fields;
    fields.prompt = prompt;
    return output_path(base + "/" + pattern, fields);
  };
  EXPECT_EQ(path("out/{prompt}/a.mp4", "new"), base + "/out/new/a.mp4");
  EXPECT_EQ(path("out/{prompt}/a.mp4", "near"), base + "/out/near/a.mp4");
  EXPECT_EQ(path("out/{prompt}/", "new"), base + "/out/new/");
  EXPECT_EQ(path("out/x_{prompt}.mp4", "new"), base + "/out/x_new.mp4");
  EXPECT_EQ(path("out/link/{prompt}.mp4", "new"), base + "/out/link/new.mp4");  // the user's own
  test::expect_error(ErrorKind::kOutput, "elsewhere", [&] { path("out/{prompt}/a.mp4", "link"); });
  EXPECT_THROW(path("out/{prompt}/frames/", "link"), Error);
  fs::remove_all(base);
}

TEST(OutputName, OnlyClipsAreWrittenInSegments) {
  for (const char* output : {"a.mp4", "a.webm", "clips/"})
    EXPECT_EQ(output_pattern({.output = output, .in_segments = true, .frames = 9}),
              output_pattern({.output = output, .frames = 9}));
  const std::string rule =
      ", but --segment writes a clip in several files; legal with it: a name ending in .mp4 or "
      ".webm, or a folder ending in / that receives clips";
  EXPECT_EQ(name_refusal({.output = "a.gif", .in_segments = true, .frames = 9}),
            "--output is 'a.gif'" + rule);
  EXPECT_EQ(name_refusal({.output = "a/", .in_segments = true, .frames = 1}),
            "--output is 'a/'" + rule);
  EXPECT_EQ(
      name_refusal({.output = "a/", .frames_as_pictures = true, .in_segments = true, .frames = 9}),
      "--output is 'a/'" + rule);
}

TEST(OutputName, TheLengthOfASegmentIsAWholeNumberOfFrames) {
  const auto frames = [](const std::string& length, double fps) {
    const std::vector<std::string> arguments{"--segment", length};
    RunnerSettings settings;
    settings.segment_seconds = segment_seconds(Flags::parse(kGenerate, arguments));
    return settings.segment_frames(fps);
  };
  EXPECT_EQ(frames("60s", 16), 960);
  EXPECT_EQ(frames("2m", 16), 1920);
  EXPECT_EQ(frames("0.5", 16), 8);
  EXPECT_EQ(frames("1h", 24000 / 1001.0), 86314);
  EXPECT_EQ(frames("0.001s", 16), 1);
  EXPECT_EQ(frames("none", 16), std::nullopt);
  for (const char* length : {"", "0", "-1s", "60x", "s", "25h", "nan"})
    EXPECT_THROW(frames(length, 16), Error) << length;
}

}  // namespace
}  // namespace weft
