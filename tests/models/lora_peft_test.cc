// PEFT's configuration of a LoRA: alphas, ranks and the regular expressions that give them.
#include <iterator>
#include <sstream>

#include "models/lora/peft_config.h"
#include "tests/models/lora_testing.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

TEST_F(LoraTest, PeftStatesAlphaBesideTheWeights) {
  const std::string q = "transformer.blocks.0.attn1.to_q", name = "blocks.0.attn1.to_q.weight";
  Given tensors;
  const Shared up = tensors[q + ".lora_B.weight"] = tensor_of({24, 4}, 1);
  const Shared down = tensors[q + ".lora_A.weight"] = tensor_of({4, 24}, 2);
  expect_product(merged({write(tensors)}), name, 1, up, down);
  for (const auto& [config, factor] :
       {std::pair{R"({"transformer.lora_alpha": 8, "transformer.r": 4})", 2.0},
        {R"({"transformer.lora_alpha": 8, "transformer.use_rslora": true})", 4.0},
        {R"({"transformer.lora_alpha": 8,
             "transformer.alpha_pattern": {"blocks.0.attn1.to_q": 2}})",
         0.5},
        {R"({"lora_alpha": 12})", 3.0}})
    expect_product(merged({write(tensors, 1, "meta", {{"lora_adapter_metadata", config}})}), name,
                   factor, up, down);
  expect_error(ErrorKind::kModel, "alpha_pattern", [&] {
    merged({write(tensors, 1, "meta",
                  {{"lora_adapter_metadata", R"({"lora_alpha": 1, "alpha_pattern": 3})"}})});
  });
  expect_error(ErrorKind::kModel, "transformer.peft_type is 'LOKR', legal: LORA", [&] {
    merged({write(tensors, 1, "meta",
                  {{"lora_adapter_metadata", R"({"transformer.peft_type": "LOKR"})"}})});
  });
  // PEFT's own files have the configuration in a file of its own.
  Given raw;
  raw["base_model.model.blocks.0.attn1.to_q.lora_B.weight"] = up;
  raw["base_model.model.blocks.0.attn1.to_q.lora_A.weight"] = down;
  dir_.write("adapter_config.json", R"({"peft_type": "LORA", "lora_alpha": 2, "r": 4})");
  expect_product(merged({write(raw)}), name, 0.5, up, down);
}

class PeftPatterns : public LoraTest {
 protected:
  // LoRAs of rank 4 for the queries and the keys of all attentions, and of rank 2 for the values.
  PeftPatterns() {
    for (const char* block : {"blocks.0.", "blocks.1."})
      for (const char* attention : {"attn1.", "attn2."})
        for (const auto& [to, rank] : {std::pair{"to_q", 4}, {"to_k", 4}, {"to_v", 2}})
          ranks_[std::string(block) + attention + to] = rank;
  }
  // Expects the alphas that `alpha` gives for modules, with the configuration in the metadata of
  // diffusers and in PEFT's own file.
  template <class Alpha>
  void expect_alphas(const std::string& config, Alpha&& alpha) {
    SCOPED_TRACE(config);
    for (const bool own : {false, true}) {
      const std::string prefix = own ? "base_model.model." : "transformer.";
      Given tensors;
      int seed = 1;
      for (const auto& [module, rank] : ranks_) {
        tensors[prefix + module + ".lora_A.weight"] = tensor_of({rank, 24}, seed++);
        tensors[prefix + module + ".lora_B.weight"] = tensor_of({24, rank}, seed++);
      }
      std::string stated = config;
      if (own)
        for (size_t at; (at = stated.find("\"transformer.")) != std::string::npos;)
          stated.erase(at + 1, 12);
      dir_.write("adapter_config.json", stated);
      const TensorFile file = merged(
          {own ? write(tensors) : write(tensors, 1, "meta", {{"lora_adapter_metadata", stated}})});
      for (const auto& [module, rank] : ranks_) {
        const Tensor& up = *tensors.at(prefix + module + ".lora_B.weight");
        const Tensor& down = *tensors.at(prefix + module + ".lora_A.weight");
        const std::vector<float> before = values(*base_, module + ".weight"),
                                 after = values(file, module + ".weight");
        for (size_t i = 0; i < before.size(); ++i) {
          double sum = 0;
          for (int64_t k = 0; k < rank; ++k)
            sum += double{up.as<float>()[static_cast<int64_t>(i) / 24 * rank + k]} *
                   double{down.as<float>()[k * 24 + static_cast<int64_t>(i) % 24]};
          ASSERT_NEAR(after[i], before[i] + alpha(module) / rank * sum, 2e-5) << module << " " << i;
        }
      }
    }
  }

  std::map<std::string, int> ranks_;
};

TEST_F(PeftPatterns, TheFirstKeyThatMatchesCounts) {
  expect_alphas(R"({"transformer.lora_alpha": 4, "transformer.alpha_pattern": {"to_q": 2}})",
                [](const std::string& m) { return m.ends_with("to_q") ? 2.0 : 4.0; });
  EXPECT_TRUE(notes_.empty());
  expect_alphas(R"x({"transformer.lora_alpha": 4, "transformer.alpha_pattern":
                     {".*attn1\\.to_(k|v)": 1, "^blocks\\.1\\..*": 8}})x",
                [](const std::string& m) {
                  const bool first = m.ends_with("attn1.to_k") || m.ends_with("attn1.to_v");
                  return first ? 1.0 : m.starts_with("blocks.1.") ? 8.0 : 4.0;
                });
  EXPECT_TRUE(notes_.empty());
  // The order is that of the text, not of the alphabet.
  expect_alphas(R"({"transformer.alpha_pattern": {"to_q": 2, "blocks.0.attn1.to_q": 9},
                    "transformer.r": 1, "transformer.lora_alpha": 4})",
                [](const std::string& m) { return m.ends_with("to_q") ? 2.0 : 4.0; });
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_TRUE(contains(notes_[0], "1 keys: \"blocks.0.attn1.to_q\""));
  expect_alphas(R"({"transformer.alpha_pattern": {"blocks.0.attn1.to_q": 9, "to_q": 2},
                    "transformer.lora_alpha": 4})",
                [](const std::string& m) {
                  return m == "blocks.0.attn1.to_q" ? 9.0 : m.ends_with("to_q") ? 2.0 : 4.0;
                });
  EXPECT_TRUE(notes_.empty());
}

TEST_F(PeftPatterns, KeysThatMatchNothingAreNamed) {
  // A key is no part of a name, and the point before it is one.
  expect_alphas(R"({"transformer.lora_alpha": 4, "transformer.alpha_pattern":
                   {"to": 2, "o_q": 2, "attn3.to_q": 2, "attn1": 1}})",
                [](const std::string&) { return 4.0; });
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_TRUE(
      contains(notes_[0], "adapter_config.json: alpha_pattern has keys that apply to no module"));
  EXPECT_TRUE(contains(notes_[0], "4 keys: \"to\", \"o_q\", \"attn3.to_q\", \"attn1\""));
}

TEST_F(PeftPatterns, RanksAreThoseOfTheFactors) {
  expect_alphas(R"({"transformer.lora_alpha": 4, "transformer.r": 4,
                   "transformer.rank_pattern": {".*to_v": 2}})",
                [](const std::string&) { return 4.0; });
  EXPECT_TRUE(notes_.empty());
  expect_alphas(R"({"transformer.lora_alpha": 4, "transformer.rank_pattern": {"to_w": 2}})",
                [](const std::string&) { return 4.0; });
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_TRUE(contains(notes_[0], "rank_pattern has keys"));
  Given tensors;
  tensors["transformer.blocks.0.attn1.to_q.lora_A.weight"] = tensor_of({4, 24}, 1);
  tensors["transformer.blocks.0.attn1.to_q.lora_B.weight"] = tensor_of({24, 4}, 2);
  for (const auto& [pattern, part] :
       {std::pair{R"("rank_pattern": {"to_q": 8})", "gives it 8 rows"},
        {R"("alpha_pattern": {"to_(q": 8})",
         "alpha_pattern: \"to_(q\": the pattern cannot be read"},
        {R"("alpha_pattern": {"to_q": "8"})", "\"to_q\" is \"8\""},
        {R"("rank_pattern": ["to_q"])", "rank_pattern is not an object"}})
    expect_error(ErrorKind::kModel, part, [&] {
      merged({write(
          tensors, 1, "meta",
          {{"lora_adapter_metadata", "{\"lora_alpha\": 1, " + std::string(pattern) + "}"}})});
    });
}

bool matches(const std::string& key, const std::string& name) {
  const SplitPattern::TimeLimit limit(name.size());
  return !module_pattern(key, "here").find_all(name, limit).empty();
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

TEST(ModulePattern, MatchesAsPythonDoes) {
  const std::string name = "blocks.10.attn1.to_q";
  for (const std::string& key :
       words(R"x(to_q attn1.to_q blocks.10.attn1.to_q .* .*to_q b.*q to_[qkv] to_[^a-p] to_(q|k)
                 to_(?:k|q) (?P<which>attn\d)\.to_q blocks\.\d{1,2}\..* to_q$ ^blocks.* \w+ \w{4}
                 [\w.]+ t?o?_?q to_k?q to_q{1} to__*q (?!attn2)attn.\.to_q attn1(?=\.to).*
                 attn1\.to_(?<=_)q attn1\.to_(?<!a)q \bto_q\b .*0\D+1\D+ t.+?q (?#which)to_q
                 to_q|to_k ()to_q []t]o_q [.t-]o_q (t|to|to_|_q|q)* \Ablocks.*\Z (to_q){,1}
                 (a*)*to_q (|t)o?(_q)? (attn)?(1)\.to_q)x"))
    EXPECT_TRUE(matches(key, name)) << key;
  for (const std::string& key :
       words(R"x(o_q to to_ blocks attn1 to_k TO_Q to_[^q] ^to_q to_q\. to_q{2} to_q{ {, .{2}
                 blocks\.1\..* (?=attn2)attn.\.to_q attn1(?!\.to).* \d+ (?<=a)to_q to\b_q to_\Bqx
                 \W+ to_q+q [a-c]+ (k|v) (t)\1)x"))
    EXPECT_FALSE(matches(key, name)) << key;
  EXPECT_FALSE(matches("", name));
  EXPECT_TRUE(matches("", "ends.with.a.dot."));
  EXPECT_TRUE(matches("a{2,}b{,2}", "aaabb"));
  EXPECT_FALSE(matches("a{2,}b{,2}", "aaabbb"));
  EXPECT_TRUE(matches("a{x}", "a{x}"));
}

TEST(ModulePattern, WhatIsNoExpressionIsNamed) {
  for (const char* key : {"to_(q", "to_q)", "to_[qk", "*to_q", "to_q|+", "to_q\\", "[z-a]",
                          "(?P=which)", "(?P<>q)", "(?#q", "(?<q", "(?", "(?{q})", "\\9q"}) {
    SCOPED_TRACE(key);
    expect_error(ErrorKind::kModel, "here: the pattern", [&] { module_pattern(key, "here"); });
  }
  for (const size_t size : {8192, 100'000})
    expect_error(ErrorKind::kModel, "here: the pattern",
                 [&] { module_pattern(std::string(size, '('), "here"); });
}

// Each ends: with an answer, or with an error that names it when its time is over.
TEST_F(PeftPatterns, HostileOnesEnd) {
  Given tensors;
  for (const std::string end : {"!", "?", "b"}) {
    const std::string module = "base_model.model." + std::string(300, 'a') + end;
    tensors[module + ".lora_A.weight"] = tensor_of({4, 24}, 1);
    tensors[module + ".lora_B.weight"] = tensor_of({24, 4}, 2);
  }
  const Lora lora = write(tensors);
  for (const char* key : {"(a+)+$", "(a*)*c", "(.*a){20}c", "(a{1000}){1000}c", "(?=(a+)+c)a",
                          "(a*)*\\\\1c", "(?!(a|aa)*c)a*x"}) {
    SCOPED_TRACE(key);
    dir_.write("adapter_config.json", "{\"alpha_pattern\": {\"" + std::string(key) + "\": 1}}");
    expect_error(ErrorKind::kModel, "", [&] { merged({lora}); });  // no such modules, at least
  }
  dir_.write("adapter_config.json", R"x({"rank_pattern": {"(a|aa)+c": 1}})x");
  expect_error(ErrorKind::kModel, "rank_pattern: \"(a|aa)+c\": the pattern takes too long",
               [&] { merged({lora}); });
}

}  // namespace
}  // namespace weft::test
