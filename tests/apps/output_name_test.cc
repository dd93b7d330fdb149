#include "apps/output_name.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "kernels/check.h"

namespace weft {
namespace {

TEST(OutputName, KindFollowsTheForm) {
  EXPECT_EQ(output_kind("a/b.mp4"), OutputKind::kMp4);
  EXPECT_EQ(output_kind("b.WEBM"), OutputKind::kWebm);
  EXPECT_EQ(output_kind("b.gif"), OutputKind::kGif);
  EXPECT_EQ(output_kind("b.png"), OutputKind::kPng);
  EXPECT_EQ(output_kind("frames/"), OutputKind::kPngFolder);
  EXPECT_THROW(output_kind("a.avi"), Error);
  EXPECT_THROW(output_kind("plain"), Error);
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
  EXPECT_LE(expand_name("{prompt:99}", fields).size(), 40u);
  EXPECT_EQ(expand_name("{prompt}", fields).find_first_of("*/ ,"), std::string::npos);
  fields.prompt = "???";
  EXPECT_EQ(expand_name("{prompt}", fields), "untitled");
}

TEST(OutputName, UnknownFieldsAreRefused) {
  EXPECT_THROW(expand_name("{sead}.mp4", {}), Error);
  EXPECT_THROW(expand_name("{seed", {}), Error);
  EXPECT_THROW(expand_name("{idx:x}", {}), Error);
}

// Whatever a prompt or a model's name holds, it stays one plain, visible component.
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
                                       "0123456789._-"),
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
  try {
    path("out/{prompt}/a.mp4", "link");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutput);
    EXPECT_NE(std::string(error.what()).find("elsewhere"), std::string::npos) << error.what();
  }
  EXPECT_THROW(path("out/{prompt}/frames/", "link"), Error);
  fs::remove_all(base);
}

}  // namespace
}  // namespace weft
