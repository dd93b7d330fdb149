// Conformance cases that name parts of their model elsewhere: what they may name, and what is
// refused.
#include "apps/verify/verify_case.h"
#include "io/json.h"
#include "tests/apps/cli_testing.h"
#include "tests/support/golden_case.h"

namespace weft::test {
namespace {

// Golden cases without their own models, in a fresh folder beside the models of others.
class VerifyParts : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    fs::create_directories(path("other"));
  }
  // Copies a golden case but its model.
  void make(const std::string& name) {
    fs::create_directories(path("case"));
    for (const char* file : {"case.json", "inputs.safetensors", "expected.safetensors"})
      if (const fs::path from = "tests/golden/" + name + "/" + file; fs::exists(from))
        fs::copy_file(from, path("case/") + file, fs::copy_options::overwrite_existing);
  }
  void name_parts(const nlohmann::json& model) {
    nlohmann::json spec = read_json_file(path("case/case.json"));
    spec["model"] = model;
    std::ofstream(path("case/case.json")) << spec.dump();
  }
  // Copies a part of a golden case into the folder of another model or of the case.
  void copy_part(const std::string& name, const std::string& part, const std::string& to) {
    fs::create_directories(fs::path(path(to)).parent_path());
    fs::copy(golden_part(name, part), path(to), fs::copy_options::recursive);
  }
  // Returns whether the case passes, with as many tensors as the golden case has.
  testing::AssertionResult passes(size_t tensors) {
    const std::vector<VerifyRow> rows = verify_case(path("case"), {.threads = 1});
    if (rows.size() != tensors) return testing::AssertionFailure() << rows.size() << " tensors";
    for (const VerifyRow& row : rows)
      if (!row.pass) return testing::AssertionFailure() << row.tensor << ": " << row.note;
    return testing::AssertionSuccess();
  }
  // Expects that the case is malformed, and that the message has every word.
  void expect_refused(const nlohmann::json& model, const std::vector<std::string>& words) {
    name_parts(model);
    const Outcome outcome = run("verify " + path("case"));
    EXPECT_EQ(outcome.code, 3) << model << outcome.err;
    for (const std::string& word : words)
      EXPECT_NE(outcome.err.find(word), std::string::npos) << word << " in " << outcome.err;
  }
};

TEST_F(VerifyParts, FoldersAndFilesAreTakenFromElsewhere) {
  make("vae21_tiny_decode1");
  copy_part("vae21_tiny_decode1", "vae", "other/model/vae");
  name_parts({{"vae", "../other/model/vae"}});
  EXPECT_TRUE(passes(1));
  name_parts({{"vae", "../other/model/vae/diffusion_pytorch_model.safetensors"}});
  EXPECT_TRUE(passes(1));
  // A file without a config.json beside it has that of the case.
  fs::create_directories(path("case/model/vae"));
  fs::rename(path("other/model/vae/config.json"), path("case/model/vae/config.json"));
  EXPECT_TRUE(passes(1));
  // Without names the case has all in its own folder.
  fs::rename(path("other/model/vae/diffusion_pytorch_model.safetensors"),
             path("case/model/vae/diffusion_pytorch_model.safetensors"));
  name_parts(nullptr);
  EXPECT_TRUE(passes(1));
}

TEST_F(VerifyParts, PartsOfAPipelineComeFromBothFolders) {
  make("pipeline_t2v");
  copy_part("pipeline_t2v", "vae", "other/vae");
  copy_part("pipeline_t2v", "tokenizer", "other/words");
  fs::copy(kModel, path("case/model"), fs::copy_options::recursive);
  fs::remove_all(path("case/model/vae"));
  fs::remove_all(path("case/model/tokenizer"));
  const size_t tensors =
      TensorFile::open("tests/golden/pipeline_t2v/expected.safetensors").names().size();
  name_parts({{"vae", "../other/vae"}, {"tokenizer", "../other/words"}});
  EXPECT_TRUE(passes(tensors));
  expect_refused({{"vae", "../other/vae"}}, {"tokenizer"});
  // A pipeline has its scheduler in its own folder, and this family has one tokenizer.
  copy_part("pipeline_t2v", "scheduler", "other/scheduler");
  expect_refused({{"scheduler", "../other/scheduler"}}, {"scheduler", "legal: transformer, "});
  expect_refused({{"tokenizer_2", "../other/words"}}, {"case.json", "other/words", "one text"});
}

TEST_F(VerifyParts, StagesReadTheSchedulerAndTokenizersOfOthers) {
  make("scheduler_euler_n4_s3_0");
  copy_part("scheduler_euler_n4_s3_0", "scheduler", "other/scheduler");
  name_parts({{"scheduler", "../other/scheduler"}});
  EXPECT_TRUE(passes(3));
  for (const char* name : {"tokenizer_clip", "tokenizer_bpe_qwen", "tokenizer_spm"}) {
    make(name);
    fs::remove_all(path("other"));
    copy_part(name, "tokenizer", "other");
    name_parts({{"tokenizer", "../other"}});
    for (const VerifyRow& row : verify_case(path("case"), {.threads = 1}))
      EXPECT_TRUE(row.pass) << name << " " << row.tensor << ": " << row.note;
  }
}

TEST_F(VerifyParts, WrongNamesAndPathsAreMalformedCases) {
  make("vae21_tiny_decode1");
  const std::string wrong = "../other/model/vae";
  expect_refused({{"vae", wrong}}, {"case.json: model.vae is '" + wrong + "'", "no such file"});
  fs::create_directories(path("other/model/vae"));
  std::ofstream(path("other/model/vae/config.json")) << "{}";
  expect_refused({{"vae", wrong}}, {"model.vae is '" + wrong + "'", "without files"});
  expect_refused({{"wae", wrong}}, {"model names the part 'wae'", "legal: ", "vae", "scheduler"});
  expect_refused({{"vae", 7}}, {"case.json: model", "vae", "7"});
  expect_refused("../other/model", {"model = \"../other/model\"", "legal: an object"});
}

}  // namespace
}  // namespace weft::test
