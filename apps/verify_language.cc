// Stage llm: all logits and hidden states of one pass, then a greedy continuation, under any
// layout.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "apps/verify_run.h"
#include "engine/language.h"
#include "kernels/copy.h"

namespace weft {

namespace {

// input_ids of the case, in its file.
TensorView given_ids(const Case& c, const TensorFile& inputs) {
  if (!inputs.contains("input_ids") || inputs.view("input_ids").rank != 1 ||
      inputs.view("input_ids").dtype != DType::kI32)
    throw Error(ErrorKind::kModel, c.folder + ": input_ids is missing or not int32 [n]");
  return inputs.view("input_ids");
}

// Rows that every rank of stage `stage` has, on the root.
Tensor on_root(Stream& stream, Replica& replica, int stage, int index, const Tensor* own,
               int64_t rows, int64_t columns) {
  const int source = replica.rank_of(stage, 0);
  const Tag tag{.kind = Traffic::kControl, .segment = index};
  Tensor whole;
  if (replica.root()) {
    whole = Tensor(DType::kF32, {rows, columns});
    if (source == 0)
      copy(stream, *own, whole);
    else
      replica.communicator().receive(stream, source, tag, whole);
  } else if (source == replica.rank()) {
    replica.communicator().send(stream, 0, tag, *own);
  }
  return whole;
}

// One pass over all ids through the stages; the root gets logits and hidden states by their golden
// names.
NamedTensors score(LanguageRank& rank, const std::vector<int32_t>& ids) {
  Replica& replica = rank.replica();
  Stream& stream = rank.stream();
  const int stages = replica.layout()[Axis::kLayers];
  const BlockRange blocks = rank.blocks();
  const int64_t n = static_cast<int64_t>(ids.size()), d = rank.config().hidden;
  const Pass pass;
  const LanguageRank::Part part{0, ids};
  rank.open(0);
  const LanguageRank::Share share = rank.share({&part, 1});
  Tensor hidden(DType::kF32, {share.rows, d}), wire(rank.options().dtype, {share.rows, d});
  const Tag tag{.kind = Traffic::kHidden};
  if (!blocks.first()) {
    replica.communicator().receive(stream, replica.stage_peer(-1), tag, wire);
    copy(stream, wire, hidden);
  }
  Collector collector;
  rank.forward(pass, {&part, 1}, share, hidden, &collector);
  if (!blocks.last()) {
    copy(stream, hidden, wire);
    replica.communicator().send(stream, replica.stage_peer(1), tag, wire);
  }

  NamedTensors out;
  const auto keep = [&](const std::string& name, int stage, int index, const Tensor& own) {
    Tensor whole = on_root(stream, replica, stage, index, &own, n, own ? own.view()[1] : d);
    if (whole) out[name] = std::move(whole);
  };
  for (int stage = 0; stage < stages; ++stage) {
    const BlockRange of = stage_blocks(rank.config().layers, stages, stage);
    for (int k = of.begin + (stage > 0); k <= of.end - of.last(); ++k) {
      const std::string name = "hidden_states." + std::to_string(k);
      Tensor whole;
      if (of.begin == blocks.begin)
        whole = rank.wanted_rows(pass, {&part, 1}, share, collector.tensors.at(name), true);
      keep(name, stage, k, whole);
    }
  }
  Tensor normed, logits;
  if (blocks.last()) {
    const Tensor wanted = rank.wanted_rows(pass, {&part, 1}, share, hidden, true);
    normed = rank.normed(wanted);
    logits = rank.logits(pass, wanted);
  }
  keep("hidden_states." + std::to_string(rank.config().layers), stages - 1, rank.config().layers,
       normed);
  Tensor words = on_root(stream, replica, stages - 1, rank.config().layers + 1, &logits, n,
                         rank.config().vocab);
  if (words) out["logits"] = std::move(words);
  rank.close(0);
  return out;
}

// Greedy ids in bf16: where two logits are closer than their error, either of them is right. So an
// expected id stands where its logit, behind the expected ids before it, is the best but for that
// error: six times the bound's share of the row's root mean square.
void take_near_ties(LanguageRank& rank, const std::vector<int32_t>& prompt,
                    const TensorView& expected, double bound, std::vector<int32_t>& ids) {
  const auto* want = expected.as<int32_t>();
  const auto count = static_cast<int64_t>(ids.size());
  if (expected.dtype != DType::kI32 || expected.count() != count ||
      std::equal(ids.begin(), ids.end(), want))
    return;
  std::vector<int32_t> all = prompt;
  all.insert(all.end(), want, want + count - 1);
  const NamedTensors scored = score(rank, all);
  const auto logits = scored.find("logits");
  if (logits == scored.end()) return;  // not the root
  const int64_t vocab = rank.config().vocab;
  for (int64_t i = 0; i < count; ++i) {
    const float* row =
        logits->second.as<float>() + (static_cast<int64_t>(prompt.size()) - 1 + i) * vocab;
    double squares = 0;
    for (int64_t word = 0; word < vocab; ++word) squares += double{row[word]} * row[word];
    const double error = 6 * bound * std::sqrt(squares / static_cast<double>(vocab));
    ids[i] = *std::max_element(row, row + vocab) - row[want[i]] <= error
                 ? want[i]
                 : static_cast<int32_t>(std::max_element(row, row + vocab) - row);
  }
}

}  // namespace

NamedTensors run_llm(Case& c) {
  const TensorFile inputs = TensorFile::open(c.file("inputs.safetensors"));
  const TensorView given = given_ids(c, inputs);
  const int greedy = c.integer("greedy", 4096);
  CompletionRequest request{.max_tokens = greedy};
  request.prompt.resize(given[0]);
  std::memcpy(request.prompt.data(), given.data, given.bytes());

  LanguageModel model(c.file("model"),
                      {.dtype = c.options.dtype,
                       .threads = c.options.threads,
                       .determinism = c.options.determinism,
                       .ops = c.options.ops,
                       .positions = given[0] + greedy,
                       .split_tokens = 1},
                      std::move(c.replica));
  NamedTensors out = score(model.rank(), request.prompt);
  Completion completion = model.complete({&request, 1})[0];
  const TensorFile expected = TensorFile::open(c.file("expected.safetensors"));
  if (c.options.dtype == DType::kBF16 && expected.contains("greedy_ids"))
    take_near_ties(model.rank(), request.prompt, expected.view("greedy_ids"),
                   case_bound(c.folder, c.spec, c.options.dtype), completion.ids);
  Tensor ids(DType::kI32, {static_cast<int64_t>(completion.ids.size())});
  std::memcpy(ids.as<int32_t>(), completion.ids.data(), ids.view().bytes());
  out["greedy_ids"] = std::move(ids);
  return out;
}

LayoutLimits llm_limits(const Case& c) {
  const TensorFile inputs = TensorFile::open(c.file("inputs.safetensors"));
  LayoutLimits limits =
      LanguageRank::limits(LanguageModel::read_config(c.file("model")), given_ids(c, inputs)[0]);
  limits.requests = 0;
  return limits;
}

}  // namespace weft
