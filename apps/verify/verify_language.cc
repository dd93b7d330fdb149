// Stage llm: checks all logits and hidden states of one pass, then a greedy continuation, under any
// layout.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "apps/verify/verify_run.h"
#include "engine/language/language.h"
#include "kernels/copy.h"
#include "kernels/transfer.h"

namespace weft {

namespace {

// Reads input_ids from the case's file.
TensorView given_ids(const Case& c, const TensorFile& inputs) {
  if (!inputs.contains("input_ids") || inputs.view("input_ids").rank != 1 ||
      inputs.view("input_ids").dtype != DType::kI32 || inputs.view("input_ids")[0] == 0)
    c.refuse("input_ids is missing or not int32 [n], n >= 1");
  return inputs.view("input_ids");
}

// Gives the root the rows that every rank of stage `stage` has.
Tensor on_root(Stream& stream, const RankPlacement& placement, int stage, int index,
               const TensorView& own, std::array<int64_t, 2> shape) {
  const int source = placement.rank_of(stage, 0);
  Tensor whole;
  if (placement.root()) whole = Tensor(DType::kF32, shape);
  std::optional<HostCopy> sent;
  if (source == placement.rank()) sent.emplace(stream, own);
  Stream host = host_stream(stream);
  if (placement.alone())
    copy(host, *sent, whole);
  else
    placement.communicator().gather_v(
        host, {.kind = Payload::kControl, .topic = Topic::kCheck, .hop = index},
        sent ? sent->view() : TensorView(),
        [&](int rank) { return rank == source ? whole.view() : TensorView(); });
  return whole;
}

// One pass over all ids through the stages. It chooses no ids.
class OnePass final : private TokenProgram {
 public:
  OnePass(LanguageRank& rank, const std::vector<int32_t>& ids) : TokenProgram(rank) {
    pass_.parts = {{0, ids}};
    const LanguageRank::Share share = rank.share(pass_.parts);
    pass_.split = share.split ? LanguageRank::Split::kTokens : LanguageRank::Split::kHeads;
  }
  const Micro& run() {
    run_rounds(1, 1);
    return pass_;
  }
  Collector collector;

 private:
  Micro& micro(int) override { return pass_; }
  void choose(const Pass&, std::span<int32_t> ids) override { std::ranges::fill(ids, -1); }
  void learn(int, std::span<const int32_t>) override {}
  Observer* observer() override { return &collector; }

  Micro pass_;
};

// Runs one pass over all ids through the stages; the root gets logits and hidden states under their
// golden names.
NamedTensors score(LanguageRank& rank, const std::vector<int32_t>& ids) {
  const RankPlacement& placement = rank.placement();
  Stream& stream = rank.stream();
  const int stages = placement.layout()[Axis::kLayers];
  const BlockRange blocks = rank.blocks();
  const int64_t n = static_cast<int64_t>(ids.size()), d = rank.config().hidden;
  const Pass pass;
  rank.open(0);
  OnePass one(rank, ids);
  const auto& [parts, split, share, hidden, round] = one.run();

  NamedTensors out;
  const auto keep = [&](const std::string& name, int stage, int index, const TensorView& own) {
    Tensor whole = on_root(stream, placement, stage, index, own, {n, d});
    if (whole) out[name] = std::move(whole);
  };
  for (int stage = 0; stage < stages; ++stage) {
    const BlockRange of = stage_blocks(rank.config().layers, stages, stage);
    for (int k = of.begin + (stage > 0); k <= of.end - of.last(); ++k) {
      const std::string name = "hidden_states." + std::to_string(k);
      TensorView whole;
      if (of.begin == blocks.begin)
        whole = rank.wanted_rows(pass, parts, share,
                                 on_device(stream, std::move(one.collector.tensors.at(name))),
                                 LanguageRank::Tokens::kAll);
      keep(name, stage, k, whole);
    }
  }
  TensorView normed, logits;
  if (blocks.last()) {
    const TensorView wanted =
        rank.wanted_rows(pass, parts, share, hidden, LanguageRank::Tokens::kAll);
    normed = rank.normed(wanted);
    logits = rank.logits(pass, wanted);
  }
  keep("hidden_states." + std::to_string(rank.config().layers), stages - 1, rank.config().layers,
       normed);
  Tensor logit_rows = on_root(stream, placement, stages - 1, rank.config().layers + 1, logits,
                              {n, rank.config().vocab});
  if (logit_rows) out["logits"] = std::move(logit_rows);
  rank.close(0);
  return out;
}

// Compares greedy ids in bf16. Where two logits are closer than their error, either id is right. At
// the first difference, both the expected id and ours must have a logit within that error of the
// best one; the error is six times the bound times the root mean square of the row. All ids after
// the first difference continue another text and count as right.
void take_near_tie(LanguageRank& rank, const std::vector<int32_t>& prompt,
                   const TensorView& expected, double bound, std::vector<int32_t>& ids) {
  const auto* want = expected.as<int32_t>();
  const auto differs = std::mismatch(ids.begin(), ids.end(), want).first - ids.begin();
  if (differs == static_cast<int64_t>(ids.size())) return;
  std::vector<int32_t> all = prompt;
  all.insert(all.end(), ids.begin(), ids.begin() + differs);
  const NamedTensors scored = score(rank, all);
  const auto logits = scored.find("logits");
  if (logits == scored.end()) return;  // this is not the root
  const int64_t vocab = rank.config().vocab;
  const float* row = logits->second.as<float>() + (static_cast<int64_t>(all.size()) - 1) * vocab;
  double squares = 0;
  for (int64_t word = 0; word < vocab; ++word) squares += double{row[word]} * row[word];
  const double error = 6 * bound * std::sqrt(squares / static_cast<double>(vocab));
  const float best = *std::max_element(row, row + vocab);
  if (best - row[want[differs]] <= error && best - row[ids[differs]] <= error)
    std::copy(want, want + ids.size(), ids.begin());
}

// True where greedy_ids holds so many ids of the vocabulary; anything else is compared number by
// number.
bool has_ids(const TensorFile& expected, size_t count, int64_t vocab) {
  if (!expected.contains("greedy_ids")) return false;
  const TensorView ids = expected.view("greedy_ids");
  if (ids.dtype != DType::kI32 || ids.count() != static_cast<int64_t>(count)) return false;
  return std::all_of(ids.as<int32_t>(), ids.as<int32_t>() + count,
                     [&](int32_t id) { return id >= 0 && id < vocab; });
}

}  // namespace

NamedTensors run_llm(Case& c) {
  const TensorFile inputs = TensorFile::open(c.file("inputs.safetensors"));
  const TensorView given = given_ids(c, inputs);
  const int greedy = c.integer("greedy", 4096);
  CompletionRequest request{.max_tokens = greedy};
  request.prompt.resize(given[0]);
  std::memcpy(request.prompt.data(), given.data, given.bytes());

  LanguageModel model(c.only_part("language"),
                      {.device = c.device(),
                       .dtype = c.options.dtype,
                       .threads = c.options.threads,
                       .determinism = c.options.determinism,
                       .ops = c.options.ops,
                       .positions = given[0] + greedy,
                       .split_tokens = 1},
                      std::move(c.placement));
  NamedTensors out = score(model.rank(), request.prompt);
  const int64_t vocab = model.rank().config().vocab;
  Completion completion = model.complete({&request, 1})[0];
  const TensorFile expected = TensorFile::open(c.file("expected.safetensors"));
  if (c.options.dtype == DType::kBF16 && has_ids(expected, completion.ids.size(), vocab))
    take_near_tie(model.rank(), request.prompt, expected.view("greedy_ids"),
                  case_bound(c.folder, c.spec, c.options.dtype), completion.ids);
  Tensor ids(DType::kI32, {static_cast<int64_t>(completion.ids.size())});
  std::memcpy(ids.as<int32_t>(), completion.ids.data(), ids.view().bytes());
  out["greedy_ids"] = std::move(ids);
  return out;
}

LayoutLimits llm_limits(const Case& c) {
  const TensorFile inputs = TensorFile::open(c.file("inputs.safetensors"));
  LayoutLimits limits = LanguageRank::limits(LanguageModel::read_config(c.only_part("language")),
                                             given_ids(c, inputs)[0]);
  limits.requests = 0;
  return limits;
}

}  // namespace weft
