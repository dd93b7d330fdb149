#include "apps/inspect/language_memory.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "apps/device.h"
#include "engine/memory/memory_plan.h"
#include "io/weights/weights_file.h"

namespace weft {
namespace {

// The completions of one job.
struct Job {
  DecoderConfig config;
  LanguageOptions options;
  Layout layout;
  std::vector<CompletionRequest> requests;
  CompletionOptions how{};

  // Takes the largest of all pipeline stages: the first rank of a stage holds the largest share of
  // every other axis, and the last stage has the output layer too.
  LanguageBytes predict() const {
    LanguageBytes most;
    const Mesh mesh(layout);
    for (int stage = 0; stage < layout[Axis::kLayers]; ++stage) {
      std::array<int, kAxes> at{};
      at[static_cast<int>(Axis::kLayers)] = stage;
      const LanguageBytes bytes =
          LanguageModel::predict(config, options, layout, mesh.rank_at(at), requests, how);
      if (bytes.total() > most.total()) most = bytes;
    }
    return most;
  }
};

// Up to two changes that make the job fit; the one that costs least comes first.
std::string advice(const Job& job, uint64_t available) {
  std::vector<std::string> ways;
  const auto offer = [&](const std::string& flag, const Job& other) {
    const uint64_t bytes = other.predict().total();
    if (bytes <= available) ways.push_back(flag + " (" + format_bytes(bytes) + ")");
    return bytes <= available;
  };
  Job other = job;
  const bool whole_width = job.layout[Axis::kTensor] * job.layout.sequence() == 1;
  if (job.options.weights == WeightFormat::kCompute && whole_width && cpu_has_int8()) {
    other.options.weights = WeightFormat::kInt8;
    offer("--weights int8", other);
  }
  other = job;
  int& resident = other.options.resident;
  resident = (job.config.layers + job.layout[Axis::kLayers] - 1) / job.layout[Axis::kLayers] - 1;
  while (resident >= 2 && !offer("--resident-layers " + std::to_string(resident), other))
    --resident;
  other = job;
  if (job.how.batch > 1 && job.requests.size() > 1) {
    other.how.batch = 1;
    other.options = sized_for(job.requests, 1, job.options);
    offer("--batch 1", other);
  }
  for (int64_t context = job.options.positions; ways.empty() && context > job.options.page_rows;) {
    context = context / 2 / job.options.page_rows * job.options.page_rows;
    for (CompletionRequest& request : other.requests) {
      const auto prompt = std::min<int64_t>(static_cast<int64_t>(request.prompt.size()), context);
      request.prompt.resize(static_cast<size_t>(prompt));
      request.max_tokens = std::min(request.max_tokens, context - prompt + 1);
    }
    other.options = sized_for(other.requests, other.how.batch, job.options);
    offer("--context " + std::to_string(context), other);
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

uint64_t memory_share(const Flags& flags, Device device, int ranks_per_device) {
  uint64_t available = available_memory(device);
  if (const uint64_t limit = flags.bytes("memory-limit")) available = std::min(available, limit);
  return available / static_cast<uint64_t>(ranks_per_device);
}

LanguageBytes plan_language(const DecoderConfig& config, const LanguageOptions& options,
                            const Layout& layout, std::span<const CompletionRequest> requests,
                            const CompletionOptions& how, uint64_t available) {
  const Job job{config, options, layout, {requests.begin(), requests.end()}, how};
  const LanguageBytes bytes = job.predict();
  if (bytes.total() <= available) return bytes;
  throw Error(ErrorKind::kMemory,
              std::string(layout.ranks() > 1 ? "a rank needs " : "the job needs ") +
                  format_bytes(bytes.total()) + " (weights " + format_bytes(bytes.weights) +
                  ", cache of " + std::to_string(options.cache_tokens) + " tokens " +
                  format_bytes(bytes.cache) + ", workspace " + format_bytes(bytes.workspace) +
                  "), there are " + format_bytes(available) + advice(job, available));
}

Json inspect_language(const std::string& path) {
  const DecoderConfig config = LanguageModel::read_config(path);
  const TensorFile file = open_weights(path);
  int64_t parameters = 0;
  const std::vector<TensorSpec> tensors = decoder_tensors(config);
  for (const TensorSpec& tensor : tensors) {
    int64_t count = 1;
    for (const int64_t extent : tensor.shape) count *= extent;
    parameters += count;
  }
  std::map<std::string, int64_t> dtypes;
  for (const std::string& name : file.names()) ++dtypes[file.stored_type(name)];
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
  const int ranks = static_cast<int>(flags.integer("ranks").value_or(1));
  const Layout layout =
      parse_layout(flags.text("layout"), ranks, LanguageRank::limits(config, tokens));
  // The last token is chosen from a prompt of the others, if there are any, and fed back.
  const int64_t prompt = std::max<int64_t>(tokens - 1, 1);
  const CompletionRequest request{.prompt = std::vector<int32_t>(static_cast<size_t>(prompt)),
                                  .max_tokens = tokens - prompt + 1};
  const LanguageOptions options = sized_for({&request, 1}, 1, {.dtype = compute_dtype(flags)});
  const LanguageBytes bytes = Job{config, options, layout, {request}}.predict();
  const uint64_t per_token = bytes.cache / static_cast<uint64_t>(options.cache_tokens);
  const uint64_t available = available_memory() / static_cast<uint64_t>(ranks);
  const std::string dtype(to_string(options.dtype));
  if (flags.on("json")) {
    const Json object{{"model", path},
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
