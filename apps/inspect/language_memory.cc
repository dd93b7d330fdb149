#include "apps/inspect/language_memory.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/device.h"
#include "engine/memory/memory_plan.h"

namespace weft {
namespace {

int64_t whole_pages(int64_t tokens, int64_t rows) { return (tokens + rows - 1) / rows * rows; }

LanguageOptions with(LanguageOptions options, const LanguageSize& size) {
  options.positions = size.positions;
  options.cache_tokens = size.cache_tokens;
  return options;
}

// Takes the largest of all pipeline stages: the first rank of a stage holds the largest share of
// every other axis, and the last stage has the output layer too.
LanguageBytes predict(const DecoderConfig& config, const LanguageOptions& options,
                      const Layout& layout, const LanguageSize& size, int64_t chunk) {
  LanguageBytes most;
  const Mesh mesh(layout);
  for (int stage = 0; stage < layout[Axis::kLayers]; ++stage) {
    std::array<int, kAxes> at{};
    at[static_cast<int>(Axis::kLayers)] = stage;
    const LanguageBytes bytes =
        LanguageRank::predict(config, with(options, size), RankPlacement(layout, mesh.rank_at(at)),
                              chunk, size.prompt_tokens, size.sequences);
    if (bytes.total() > most.total()) most = bytes;
  }
  return most;
}

// Up to two changes that make the job fit; the one that costs least comes first.
std::string advice(const DecoderConfig& config, const LanguageOptions& options,
                   const Layout& layout, const LanguageSize& size, int64_t chunk,
                   uint64_t available) {
  std::vector<std::string> ways;
  const auto total = [&](const LanguageOptions& other, const LanguageSize& smaller) {
    return predict(config, other, layout, smaller, chunk).total();
  };
  const auto offer = [&](const std::string& flag, uint64_t bytes) {
    ways.push_back(flag + " (" + format_bytes(bytes) + ")");
  };
  LanguageOptions other = options;
  const bool whole_width = layout[Axis::kTensor] * layout.sequence() == 1;
  if (options.weights == WeightFormat::kCompute && whole_width && cpu_has_int8()) {
    other.weights = WeightFormat::kInt8;
    if (const uint64_t bytes = total(other, size); bytes <= available)
      offer("--weights int8", bytes);
  }
  other = options;
  const int blocks = (config.layers + layout[Axis::kLayers] - 1) / layout[Axis::kLayers];
  for (other.resident = blocks - 1; other.resident >= 2; --other.resident)
    if (const uint64_t bytes = total(other, size); bytes <= available) {
      offer("--resident-layers " + std::to_string(other.resident), bytes);
      break;
    }
  LanguageSize smaller = size;
  if (size.sequences > 1) {
    smaller = {.positions = size.positions,
               .prompt_tokens = size.positions,
               .sequences = 1,
               .cache_tokens = whole_pages(size.positions, options.page_rows)};
    if (const uint64_t bytes = total(options, smaller); bytes <= available)
      offer("--batch 1", bytes);
  }
  for (; ways.empty() && smaller.positions > options.page_rows;) {
    smaller.positions = smaller.positions / 2 / options.page_rows * options.page_rows;
    smaller.prompt_tokens = std::min(smaller.prompt_tokens, smaller.positions);
    smaller.cache_tokens = std::max(smaller.positions, smaller.cache_tokens / 2);
    if (const uint64_t bytes = total(options, smaller); bytes <= available)
      offer("--context " + std::to_string(smaller.positions), bytes);
  }
  if (ways.empty()) return "; nothing that can be changed makes it fit";
  return ". Try " + ways[0] + (ways.size() > 1 ? " or " + ways[1] : "");
}

int64_t tokens_of(const Flags& flags) {
  const std::string text = flags.text("memory");
  const int64_t tokens = std::atoll(text.c_str());
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos || tokens < 1 ||
      text.size() > 8)
    throw Error(ErrorKind::kUsage, flags.label("memory") + " is '" + text +
                                       "', legal for a language model: tokens of a sequence, "
                                       "1 ... 99999999, as 4096");
  return tokens;
}

}  // namespace

LanguageSize size_of(std::span<const CompletionRequest> requests, int batch, int64_t page_rows) {
  LanguageSize size;
  std::vector<int64_t> prompts, caches;
  for (const CompletionRequest& request : requests) {
    const auto prompt = static_cast<int64_t>(request.prompt.size());
    const int64_t positions = prompt + request.max_tokens - 1;  // the last is never fed back
    size.positions = std::max(size.positions, positions);
    prompts.push_back(prompt);
    caches.push_back(whole_pages(positions, page_rows));
  }
  size.sequences = std::min<int64_t>(batch, static_cast<int64_t>(requests.size()));
  for (std::vector<int64_t>* list : {&prompts, &caches})
    std::sort(list->begin(), list->end(), std::greater<>());
  for (int64_t i = 0; i < size.sequences; ++i) {
    size.prompt_tokens += prompts[i];
    size.cache_tokens += caches[i];
  }
  return size;
}

uint64_t memory_share(const Flags& flags, Device device, int ranks_per_device) {
  uint64_t available = available_memory(device);
  if (const uint64_t limit = flags.bytes("memory-limit")) available = std::min(available, limit);
  return available / static_cast<uint64_t>(ranks_per_device);
}

LanguageBytes plan_language(const DecoderConfig& config, const LanguageOptions& options,
                            const Layout& layout, const LanguageSize& size, int64_t chunk,
                            uint64_t available) {
  const LanguageBytes bytes = predict(config, options, layout, size, chunk);
  if (bytes.total() <= available) return bytes;
  throw Error(ErrorKind::kMemory,
              std::string(layout.ranks() > 1 ? "a rank needs " : "the job needs ") +
                  format_bytes(bytes.total()) + " (weights " + format_bytes(bytes.weights) +
                  ", cache of " + std::to_string(size.cache_tokens) + " tokens " +
                  format_bytes(bytes.cache) + ", workspace " + format_bytes(bytes.workspace) +
                  "), there are " + format_bytes(available) +
                  advice(config, options, layout, size, chunk, available));
}

nlohmann::json inspect_language(const std::string& path) {
  const DecoderConfig config = LanguageModel::read_config(path);
  const TensorFile file = TensorFile::open(path);
  int64_t parameters = 0;
  const std::vector<TensorSpec> tensors = decoder_tensors(config);
  for (const TensorSpec& tensor : tensors) {
    int64_t count = 1;
    for (const int64_t extent : tensor.shape) count *= extent;
    parameters += count;
  }
  std::map<std::string, int64_t> dtypes;
  for (const std::string& name : file.names())
    ++dtypes[std::string(to_string(file.describe(name).dtype))];
  return {{"model", path},
          {"class", config.head_norms ? "Qwen3ForCausalLM" : "Qwen2ForCausalLM"},
          {"parameters", parameters},
          {"tensors", tensors.size()},
          {"bytes", file.bytes()},
          {"dtypes", dtypes},
          {"header_sha256", file.header_hash()},
          {"config",
           {{"layers", config.layers},
            {"hidden", config.hidden},
            {"ffn", config.ffn},
            {"heads", config.heads},
            {"kv_heads", config.kv_heads},
            {"head_dim", config.head_dim},
            {"vocab", config.vocab},
            {"max_positions", config.max_positions},
            {"tied", config.tied}}}};
}

void inspect_language_memory(const Flags& flags, const std::string& path) {
  const DecoderConfig config = LanguageModel::read_config(path);
  const int64_t tokens = tokens_of(flags);
  if (tokens > config.max_positions)
    throw Error(ErrorKind::kUsage, flags.label("memory") + " is " + std::to_string(tokens) +
                                       ", legal: 1 ... " + std::to_string(config.max_positions) +
                                       ", the model's positions");
  LanguageOptions options{.dtype = compute_dtype(flags)};
  const int ranks = static_cast<int>(flags.integer("ranks").value_or(1));
  const Layout layout =
      parse_layout(flags.text("layout"), ranks, LanguageRank::limits(config, tokens));
  const LanguageSize size{.positions = tokens,
                          .prompt_tokens = tokens,
                          .sequences = 1,
                          .cache_tokens = whole_pages(tokens, options.page_rows)};
  const LanguageBytes bytes = predict(config, options, layout, size, CompletionOptions{}.chunk);
  const uint64_t per_token = bytes.cache / static_cast<uint64_t>(size.cache_tokens);
  const uint64_t available = available_memory() / static_cast<uint64_t>(ranks);
  const std::string dtype(to_string(options.dtype));
  if (flags.on("json")) {
    const nlohmann::json object{{"model", path},
                                {"context", tokens},
                                {"dtype", dtype},
                                {"layout", to_string(layout)},
                                {"weights_bytes", bytes.weights},
                                {"cache_bytes", bytes.cache},
                                {"cache_bytes_per_token", per_token},
                                {"workspace_bytes", bytes.workspace},
                                {"high_water_bytes", bytes.total()},
                                {"available_bytes", available},
                                {"fits", bytes.total() <= available}};
    std::printf("%s\n", object.dump().c_str());
    return;
  }
  std::printf("%s: a sequence of %lld tokens, %s, %s%s\n\n", path.c_str(),
              static_cast<long long>(tokens), dtype.c_str(), to_string(layout).c_str(),
              layout.ranks() > 1 ? ", of the fullest rank" : "");
  std::printf("weights %s, cache %s (%llu bytes a token), workspace %s\n",
              format_bytes(bytes.weights).c_str(), format_bytes(bytes.cache).c_str(),
              static_cast<unsigned long long>(per_token), format_bytes(bytes.workspace).c_str());
  std::printf("high-water %s of %s available: %s\n", format_bytes(bytes.total()).c_str(),
              format_bytes(available).c_str(),
              bytes.total() <= available ? "fits" : "does not fit");
}

}  // namespace weft
