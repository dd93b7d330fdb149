// The stages of texts, and of the encoders of text, pictures and sound.
#include <charconv>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "apps/verify/verify_run.h"
#include "engine/parts/audio_features.h"
#include "io/json.h"
#include "io/text/text_clean.h"
#include "io/weights/weights_file.h"
#include "kernels/meter.h"
#include "models/files/tokenizer_files.h"

namespace weft {
namespace {

// Compares a list of produced values with the expected list and adds a row.
template <class T>
void compare_lists(Case& c, const std::string& what, const std::vector<T>& produced,
                   const std::vector<T>& expected) {
  if (produced.size() != expected.size())
    c.refuse("case.json holds " + std::to_string(produced.size()) + " texts and " +
             std::to_string(expected.size()) + " " + what);
  for (size_t i = 0; i < produced.size(); ++i) {
    VerifyRow row;
    row.tensor = what + "." + std::to_string(i);
    row.pass = produced[i] == expected[i];
    row.note = row.pass
                   ? "equal"
                   : "got " + Json(produced[i]).dump() + ", expected " + Json(expected[i]).dump();
    c.rows.push_back(row);
  }
}

// The id lists of case.json.
std::vector<std::vector<int32_t>> expected_ids(Case& c) {
  std::vector<std::vector<int32_t>> expected;
  const std::string what = c.file("case.json");
  for (const auto& [index, list] : json_field(c.spec, "ids", what).items()) {
    const std::vector<int64_t> ids =
        json_ints(Json{{"ids", list}}, "ids", what, {0, std::numeric_limits<int32_t>::max()});
    expected.emplace_back(ids.begin(), ids.end());
  }
  return expected;
}

void run_byte_tokenizer(Case& c, const ByteBpeTokenizer& tokenizer) {
  std::vector<std::vector<int32_t>> produced;
  std::vector<std::string> decoded;
  for (const std::string& text : c.texts("texts")) {
    produced.push_back(tokenizer.encode(text));
    decoded.push_back(tokenizer.decode(produced.back()));
  }
  compare_lists(c, "ids", produced, expected_ids(c));
  compare_lists(c, "decoded", decoded, c.texts("decoded"));
}

// The clips of a video at some frame rate, for which a case of an audio encoder has features.
struct HeardChunks {
  std::string name;  // of the expected tensor
  double fps = 0;
  int64_t frames = 0;  // of a clip

  std::vector<int64_t> rows_of(int64_t rows) const { return rows_of_frames(rows, fps, frames); }
};

std::vector<HeardChunks> clips_of(const Case& c) {
  std::vector<HeardChunks> all;
  const std::string what = c.file("case.json");
  const nlohmann::json& list = json_field(c.spec, "infer_frames", what);
  if (!list.is_object())
    c.refuse_spec("infer_frames = " + list.dump() +
                  " (legal: an object from frame rates to frames)");
  for (const auto& [fps, frames] : list.items()) {
    double rate = 0;
    const char* const end = fps.data() + fps.size();
    const auto [stopped, fault] = std::from_chars(fps.data(), end, rate);
    if (fault != std::errc() || stopped != end || !(rate >= 1 && rate <= 240))
      c.refuse_spec("infer_frames has the frame rate '" + fps + "' (legal: 1 to 240)");
    all.push_back({"bucket." + fps, rate, json_int(list, fps, what, {1, 1 << 16})});
  }
  return all;
}

// Tokenizers of text encoders, which cut a prompt to max_length ids.
template <class Tokenizer>
void run_cut_tokenizer(Case& c, const Tokenizer& tokenizer) {
  const int max_length = c.integer("max_length", 1 << 16);
  if (max_length < 2)
    c.refuse_spec("max_length is " + std::to_string(max_length) + " (legal: 2 or more)");
  std::vector<std::vector<int32_t>> produced;
  for (const std::string& text : c.texts("texts"))
    produced.push_back(tokenizer.encode(text, max_length));
  compare_lists(c, "ids", produced, expected_ids(c));
}

// The encoder whose rows are its states after the layers `taps` of the case.
std::shared_ptr<const TextEncoderModel> tapped_model(const Case& c, const TextEncoderModel& model) {
  const std::vector<int64_t> taps = json_ints(c.spec, "taps", c.file("case.json"), {0, 1 << 10});
  auto out = model.with_taps(std::vector<int>(taps.begin(), taps.end()));
  if (!out) c.refuse_spec("taps are given (legal: none, as the encoder offers no states)");
  return out;
}

// Fills up the ids of a prompt with hidden ones.
void pad(const Case& c, std::vector<int32_t>& ids) {
  const auto rows = static_cast<size_t>(c.integer("pad_to", 1 << 16));
  const auto id = static_cast<int32_t>(c.integer("pad_id", IntRange{0, 1 << 24}));
  if (rows > ids.size()) ids.resize(rows, hidden_id(id));
}

}  // namespace

NamedTensors run_tokenizer(Case& c) {
  const std::string path = c.part("tokenizer");
  if (is_tokenizer(path, TokenizerKind::kSentencePiece))
    run_cut_tokenizer(c, open_sentencepiece(path));
  else if (is_tokenizer(path, TokenizerKind::kClip))
    run_cut_tokenizer(c, open_clip_tokenizer(path));
  else
    run_byte_tokenizer(c, open_byte_bpe(path));
  return {};
}

NamedTensors run_text_clean(Case& c) {
  std::vector<std::string> produced;
  for (const std::string& text : c.texts("texts")) produced.push_back(clean_prompt(text));
  compare_lists(c, "cleaned", produced, c.texts("cleaned"));
  return {};
}

NamedTensors run_text_encoder(Case& c) {
  const ZoneScope zone(Zone::kEncodeText);
  Bench bench(c);
  std::shared_ptr<const TextEncoderModel> model =
      open_text_encoder(c.part_file("text_encoder", "config.json"));
  const bool tapped = c.spec.contains("taps");
  if (tapped) model = tapped_model(c, *model);
  const auto weights = merge_loras(c,
                                   std::make_shared<const TensorFile>(open_part_weights(
                                       PartKind::kTextEncoder, c.part("text_encoder"))),
                                   nullptr, model.get());
  const TextEncoderTraits& traits = model->traits();
  if (!c.placement.encodes_text(traits)) return {};
  const auto encoder =
      model->load(bench.stream, *weights, {c.options.dtype, c.placement.text_width(traits)});
  NamedTensors out;
  EncoderSeams seams(c.placement);
  const std::string prefix = "input_ids.";
  for (const std::string& name : bench.inputs.names()) {
    if (!name.starts_with(prefix)) continue;
    const TensorView view = bench.inputs.view(name);
    if (view.dtype != DType::kI32) c.refuse(name + " is not int32");
    std::vector<int32_t> ids(static_cast<size_t>(view.count()));
    std::memcpy(ids.data(), view.data, view.bytes());
    if (c.spec.contains("pad_to")) pad(c, ids);
    const auto rows = static_cast<int64_t>(ids.size());
    Tensor states = bench.tensor(DType::kF32, {rows, traits.columns});
    Context context = seams.context(bench.stream, bench.arena, Pass{}, traits, rows);
    encoder->encode(context, ids, states);
    const std::string number = name.substr(prefix.size());
    states = on_host(bench.stream, std::move(states));
    if (traits.pooled_row && !ids.empty()) {
      const TensorView row = states.view().select(0, traits.pooled_row(ids));
      out["pooled." + number] = f32_copy(bench.host, row, {traits.columns});
    }
    out[(tapped ? "hidden_states." : "last_hidden_state.") + number] = std::move(states);
  }
  return out;
}

NamedTensors run_image_encoder(Case& c) {
  const ZoneScope zone(Zone::kEncodeText);
  Bench bench(c);
  const std::shared_ptr<const ImageEncoderModel> model =
      open_image_encoder(c.part_file("image_encoder", "config.json"));
  const ImageEncoderTraits& traits = model->traits();
  if (!c.placement.encodes_text(traits)) return {};
  const auto encoder =
      model->load(bench.stream, open_part_weights(PartKind::kImageEncoder, c.part("image_encoder")),
                  {c.options.dtype, c.placement.text_width(traits)});
  const Tensor pixels = bench.load("pixel_values");
  const TensorView& view = pixels.view();
  if (view.rank != 3 || view[0] != 3 || view[1] != traits.size || view[2] != traits.size)
    c.refuse("pixel_values is " + view.to_string_shape() + " (legal: [3, " +
             std::to_string(traits.size) + ", " + std::to_string(traits.size) + "])");
  Tensor rows = bench.tensor(DType::kF32, {traits.rows, traits.columns});
  EncoderSeams seams(c.placement);
  Context context = seams.context(bench.stream, bench.arena, Pass{}, traits, traits.rows);
  encoder->encode(context, pixels, rows);
  NamedTensors out;
  out["hidden_states.-2"] = on_host(bench.stream, std::move(rows));
  return out;
}

NamedTensors run_audio_encoder(Case& c) {
  const ZoneScope zone(Zone::kEncodeText);
  Bench bench(c);
  const std::shared_ptr<const AudioEncoderModel> model =
      open_audio_encoder(c.part_file("audio_encoder", "config.json"));
  const AudioEncoderTraits& traits = model->traits();
  const std::vector<HeardChunks> buckets = clips_of(c);
  if (!c.placement.encodes_text(traits)) return {};
  const auto encoder =
      model->load(bench.stream, open_part_weights(PartKind::kAudioEncoder, c.part("audio_encoder")),
                  {c.options.dtype, c.placement.text_width(traits)});
  const Tensor samples = on_host(bench.stream, bench.load("waveform"));
  if (samples.view().rank != 1)
    c.refuse("waveform is " + samples.view().to_string_shape() + " (legal: [samples])");
  const int64_t n = feature_rows(traits, samples.count()), d = traits.columns;
  NamedTensors out;
  Tensor& features = out["features.30hz"] = Tensor(DType::kF32, {traits.states, n, d});
  for (const HeardChunks& clips : buckets)
    out[clips.name] = Tensor(DType::kF32, {traits.states, d, std::ssize(clips.rows_of(n))});
  EncoderSeams seams(c.placement);
  Context context =
      seams.context(bench.stream, bench.arena, Pass{}, traits, traits.rows(samples.count()));
  encoder->encode(context, samples, [&](int64_t k, const TensorView& state) {
    const HostCopy here(bench.stream, state);
    out["hidden_states." + std::to_string(k)] = f32_copy(bench.host, here, {state[0], d});
    const TensorView rows = features.view().select(0, k);
    resample_rows(here, rows);
    for (const HeardChunks& clips : buckets)
      take_rows(rows, clips.rows_of(n), out[clips.name].view().select(0, k));
  });
  return out;
}

}  // namespace weft
