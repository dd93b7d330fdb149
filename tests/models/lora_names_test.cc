// The names and the types of the tensors of LoRA files, and what the guide says of them.
#include <fstream>
#include <iterator>
#include <span>

#include "models/lora/names.h"
#include "tests/models/lora_testing.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

std::string spelled(std::string pattern, const std::string& number, const std::string& name) {
  for (const auto& [sign, text] : {std::pair{'#', number}, {'*', name}})
    if (const size_t at = pattern.find(sign); at != std::string::npos) pattern.replace(at, 1, text);
  return pattern;
}

TEST_F(LoraTest, EveryPrefixIsRead) {
  const Shared up = tensor_of({24, 3}, 1), down = tensor_of({3, 24}, 2);
  const std::string changed = "blocks.1.attn2.to_out.0.weight";
  const std::vector<std::string> dotted{"blocks.1.attn2.to_out.0", "blocks.1.cross_attn.o"},
      flat{"blocks_1_attn2_to_out_0", "blocks_1_cross_attn_o", "blocks_1.cross_attn.o",
           "blocks_1.attn2_to_out.0"};
  for (const LoraPrefix& prefix : kLoraPrefixes) {
    if (prefix.kind == LoraPrefix::kText || prefix.kind == LoraPrefix::kTextName) continue;
    for (const std::string outer : {"", "base_model.model.", "transformer."})
      for (const std::string& module : prefix.kind == LoraPrefix::kFlat ? flat : dotted) {
        const std::string name = outer + std::string(prefix.text) + module;
        SCOPED_TRACE(name);
        const TensorFile file =
            merged({write({{name + ".lora_A.weight", down}, {name + ".lora_B.weight", up}})});
        expect_product(file, changed, 1, up, down);
      }
  }
}

TEST_F(LoraTest, EveryFormIsRead) {
  const Shared up = tensor_of({24, 3}, 1), down = tensor_of({3, 24}, 2), bias = tensor_of({24}, 3);
  const std::string module = "blocks.0.attn1.to_k";
  for (size_t i = 0; i < std::size(kLoraFactors); i += 2) {
    const LoraForm &a = kLoraFactors[i], &b = kLoraFactors[i + 1];
    ASSERT_TRUE(a.role == LoraRole::kDown && b.role == LoraRole::kUp && a.kept == b.kept);
    for (const std::string adapter : {"", ".default", ".style-2_x", ".0"}) {
      const std::string down_name = module + std::string(a.text) + adapter,
                        up_name = module + std::string(b.text) + adapter;
      SCOPED_TRACE(down_name);
      const std::optional<LoraName> name = parse_lora_name(down_name + ".weight");
      ASSERT_TRUE(name);
      EXPECT_EQ(name->module, module + std::string(a.text.substr(0, a.kept)));
      if (a.kept) continue;
      const TensorFile file = merged({write(
          {{down_name + ".weight", down}, {up_name + ".weight", up}, {up_name + ".bias", bias}})});
      const std::vector<float> before = values(*base_, module + ".bias"),
                               after = values(file, module + ".bias");
      for (size_t k = 0; k < before.size(); ++k)
        ASSERT_EQ(after[k], before[k] + bias->as<float>()[k]);
      const TensorFile alone =
          merged({write({{down_name + ".weight", down}, {up_name + ".weight", up}})});
      expect_product(alone, module + ".weight", 1, up, down);
    }
  }
  for (const char* name : {"blocks.0.attn1.to_k.weight", "a.lora_C.weight", "a.lora_A.b.c.weight",
                           "a.lora_A.bias", "a.down.weight", "lora_A", "a.diff_x", ""})
    EXPECT_FALSE(parse_lora_name(name)) << name;
}

// The modulation of a block, and that of the head, are tensors of their own.
TEST_F(LoraTest, DifferencesOfModulations) {
  const Shared block = tensor_of({1, 6, 24}, 1), head = tensor_of({2, 24}, 2);
  for (const auto& [name, tensor, given] :
       {std::tuple{"diffusion_model.blocks.1.diff_m", "blocks.1.scale_shift_table", block},
        {"transformer.blocks.1.diff_m", "blocks.1.scale_shift_table", block},
        {"blocks.1.scale_shift_table.diff", "blocks.1.scale_shift_table", block},
        {"lora_unet_blocks_1.diff_m", "blocks.1.scale_shift_table", block},
        {"lora_unet__blocks_1_modulation.diff", "blocks.1.scale_shift_table", block},
        {"diffusion_model.head.diff_m", "scale_shift_table", head},
        {"head.modulation.diff", "scale_shift_table", head},
        {"transformer.diff_m", "scale_shift_table", head},
        {"diff_m", "scale_shift_table", head},
        {"transformer.scale_shift_table.diff", "scale_shift_table", head}}) {
    SCOPED_TRACE(name);
    const TensorFile file = merged({write({{name, given}}, -0.5)});
    const std::vector<float> before = values(*base_, tensor), after = values(file, tensor);
    for (size_t i = 0; i < before.size(); ++i)
      ASSERT_EQ(after[i], before[i] - 0.5f * given->as<float>()[i]);
    expect_others_unchanged(file, {tensor});
  }
  refused({{"diffusion_model.blocks.2.diff_m", block}}, "1 modules: \"diffusion_model.blocks.2\"");
  refused({{"diffusion_model.blocks.1.ffn.0.diff_m", block}}, "fits nothing");
  refused({{"diffusion_model.blocks.1.diff_m", head}}, "must have 144 values");
}

template <class T>
std::shared_ptr<const Tensor> whole_number(DType dtype, T value,
                                           const std::vector<int64_t>& shape) {
  auto out = std::make_shared<Tensor>(dtype, shape);
  *static_cast<T*>(out->view().data) = value;
  return out;
}

TEST_F(LoraTest, AlphaMayBeAnInteger) {
  const std::string q = "diffusion_model.blocks.0.self_attn.q";
  const Shared up = tensor_of({24, 4}, 1), down = tensor_of({4, 24}, 2);
  for (const auto& [alpha, value] : {std::pair{whole_number<int64_t>(DType::kI64, 2, {}), 2.0},
                                     {whole_number<int64_t>(DType::kI64, -3, {1}), -3.0},
                                     {whole_number<int32_t>(DType::kI32, 16, {}), 16.0},
                                     {whole_number<int32_t>(DType::kI32, -1, {1, 1}), -1.0},
                                     {whole_number<int16_t>(DType::kI16, -300, {}), -300.0},
                                     {whole_number<int8_t>(DType::kI8, -8, {}), -8.0},
                                     {whole_number<uint8_t>(DType::kU8, 200, {}), 200.0},
                                     {whole_number<double>(DType::kF64, 0.5, {1}), 0.5}}) {
    SCOPED_TRACE(value);
    const TensorFile file = merged({write(
        {{q + ".lora_up.weight", up}, {q + ".lora_down.weight", down}, {q + ".alpha", alpha}}, 2)});
    expect_product(file, "blocks.0.attn1.to_q.weight", 2 * value / 4, up, down);
  }
}

// The values of 8-bit floats are those that their codes mean, times a scale beside them.
TEST_F(LoraTest, FactorsMayBeEightBitFloats) {
  const std::string q = "diffusion_model.blocks.0.self_attn.q";
  struct Codes {
    DType dtype;
    uint8_t one, minus_half;  // their codes
  };
  for (const Codes& codes : {Codes{DType::kF8E4M3, 0x38, 0xb0}, Codes{DType::kF8E5M2, 0x3c, 0xb8}})
    for (const char* scale : {"", ".scale_weight", ".weight_scale"})
      for (const char* kind : {".lora_down", ".lora_A.style"}) {
        SCOPED_TRACE(std::string(to_string(codes.dtype)) + scale + kind);
        const auto eight = [&](const std::vector<int64_t>& shape, int seed, Shared& meant) {
          auto out = std::make_shared<Tensor>(codes.dtype, shape);
          auto values = std::make_shared<Tensor>(DType::kF32, shape);
          std::mt19937 random(static_cast<unsigned>(seed));
          for (int64_t i = 0; i < out->count(); ++i) {
            const bool one = random() % 2;
            static_cast<uint8_t*>(out->view().data)[i] = one ? codes.one : codes.minus_half;
            values->as<float>()[i] = (one ? 1.0f : -0.5f) * (*scale ? 0.25f : 1.0f);
          }
          meant = values;
          return Shared(out);
        };
        Shared up, down;
        const bool named = kind == std::string(".lora_A.style");
        const std::string down_name = q + kind,
                          up_name = q + (named ? ".lora_B.style" : ".lora_up");
        Given tensors;
        tensors[down_name + ".weight"] = eight({3, 24}, 1, down);
        tensors[up_name + ".weight"] = eight({24, 3}, 2, up);
        if (*scale)
          for (const std::string& name : {down_name, up_name})
            tensors[name + scale] = constant({}, 0.25f);
        if (*scale)
          tensors["scaled_fp8"] = std::make_shared<Tensor>(codes.dtype, std::vector<int64_t>{2});
        expect_product(merged({write(tensors, 1)}), "blocks.0.attn1.to_q.weight", 1, up, down);
      }
  const Shared down = tensor_of({3, 24}, 1), up = tensor_of({24, 3}, 2);
  refused({{q + ".lora_down.weight", down},
           {q + ".lora_up.weight", up},
           {q + ".lora_up.weight.scale", constant({}, 1)}},
          "\"diffusion_model.blocks.0.self_attn.q.lora_up.weight.scale\" is of a kind");
}

// The guide's tables of names are those of the source.
TEST(LoraGuide, ListsEveryNameThatIsRead) {
  const auto row = [](const std::string& what, const std::vector<std::string>& names) {
    std::string text = "| " + what + " |";
    for (const std::string& name : names)
      text += (text.ends_with("|") ? " `" : ", `") + spelled(name, "N", "NAME") + "`";
    return text + " |\n";
  };
  const auto prefixes = [](auto&& is) {
    std::vector<std::string> names;
    for (const LoraPrefix& prefix : kLoraPrefixes)
      if (is(prefix.kind)) names.emplace_back(prefix.text);
    return names;
  };
  std::vector<std::string> factors, processors;
  for (const LoraForm& form : kLoraFactors) {
    const std::string ending(form.text);
    (form.kept ? processors : factors).push_back("M" + ending + ".weight");
  }
  const auto ends = [](std::span<const LoraForm> forms) {
    std::vector<std::string> names;
    for (const LoraForm& form : forms) names.push_back("M" + std::string(form.text));
    return names;
  };
  const std::string wanted =
      "| part of a name | as files spell it |\n|---|---|\n" +
      row("prefix", prefixes([](auto kind) { return kind == LoraPrefix::kDotted; })) +
      row("prefix, after which underscores may stand for dots",
          prefixes([](auto kind) { return kind == LoraPrefix::kFlat; })) +
      row("prefix of a text encoder",
          prefixes([](auto kind) { return kind == LoraPrefix::kText; })) +
      row("beginning of a module of a text encoder",
          prefixes([](auto kind) { return kind == LoraPrefix::kTextName; })) +
      row("factors", factors) + row("factors of processors (x-flux)", processors) +
      row("factors of LoKr", ends(kLokrFactors)) + row("factors of LoHa", ends(kLohaFactors)) +
      row("other tensors", ends(kLoraOthers));
  std::ifstream file("apps/guide/weights.md");
  const std::string guide{std::istreambuf_iterator<char>(file), {}};
  EXPECT_TRUE(contains(guide, wanted)) << "apps/guide/weights.md lacks\n" << wanted;
}

}  // namespace
}  // namespace weft::test
