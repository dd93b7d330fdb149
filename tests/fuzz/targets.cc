#include "tests/fuzz/targets.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/serve/http/http_server.h"
#include "apps/serve/jobs/sent_files.h"
#include "apps/serve/openai/client_request.h"
#include "apps/serve/stream_messages.h"
#include "apps/verify/verify_stages.h"
#include "engine/preview/preview_fit.h"
#include "engine/sampling/sampler.h"
#include "io/json.h"
#include "io/media/image.h"
#include "io/media/media_probe.h"
#include "io/media/video.h"
#include "io/picture/picture_header.h"
#include "io/picture/picture_pixels.h"
#include "io/picture/picture_reader.h"
#include "io/sound/audio.h"
#include "io/text/bpe/clip_tokenizer.h"
#include "io/text/byte_bpe.h"
#include "io/text/text_clean.h"
#include "io/text/tokenizer.h"
#include "io/text/utf8.h"
#include "io/weights/tensor_file.h"
#include "io/weights/weights_file.h"
#include "kernels/check.h"
#include "models/causal_decoder/decoder.h"
#include "models/files/tokenizer_files.h"
#include "models/lora/lora.h"
#include "models/registry.h"
#include "models/umt5/encoder.h"
#include "models/wan/transformer.h"
#include "models/wan/vae.h"
#include "models/wav2vec2/encoder.h"
#include "tests/fuzz/form_target.h"

namespace weft::fuzz {
namespace {

namespace fs = std::filesystem;
using Bytes = std::span<const uint8_t>;

std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Returns the path of an unnamed file, which is filled with the bytes and can be read like any
// other.
std::string anonymous_file(Bytes bytes) {
  static const int fd = memfd_create("weft_fuzz", MFD_CLOEXEC);
  CHECK(fd >= 0 && ftruncate(fd, 0) == 0);
  CHECK(pwrite(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return "/proc/self/fd/" + std::to_string(fd);
}

// A folder that is removed when the process ends.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "weft_fuzz_XXXXXX").string();
    CHECK(mkdtemp(name.data()), name);
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ / name; }
  const Folder& link(const std::string& name, const std::string& to) const {
    fs::create_symlink(fs::absolute(to), path_ / name);
    return *this;
  }
  std::string write(const std::string& name, Bytes bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << text_of(bytes);
    return *this / name;
  }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

template <class F>
void refused_or_done(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    const std::string message = error.what();
    CHECK(error.kind() != ErrorKind::kInternal && !message.empty() && message.size() < 6000,
          message);
  }
}

// Reads every byte of every tensor, through the mapping and with read().
void use(const TensorFile& file) {
  [[maybe_unused]] static volatile unsigned sink = 0;
  unsigned sum = 0;
  for (const std::string& name : file.names()) {
    const TensorView view = file.view(name);
    const auto* bytes = static_cast<const unsigned char*>(view.data);
    for (size_t i = 0; i < view.bytes(); ++i) sum += bytes[i];
    if (view.rank > 0) {
      const int dim = view.rank - 1;
      const Tensor part = file.read(name, dim, view[dim] / 2, view[dim] - view[dim] / 2);
      CHECK(part.view().bytes() <= view.bytes(), name);
    }
    file.drop_pages(view);
  }
  sink = sum + static_cast<unsigned>(file.metadata().size() + file.header_hash().size());
}

void safetensors(Bytes bytes) {
  const std::string path = anonymous_file(bytes);
  refused_or_done([&] { use(TensorFile::open(path)); });
}

void gguf(Bytes bytes) {
  const std::string path = anonymous_file(bytes);
  refused_or_done([&] { use(open_gguf(path)); });
}

// A file whose 8-bit weights are expanded.
void scaled_weights(Bytes bytes) {
  const std::string path = anonymous_file(bytes);
  refused_or_done([&] { use(open_weights(path)); });
}

// A LoRA file for a model of two small blocks and a text encoder.
void lora(Bytes bytes) {
  static const auto model =
      open_transformer("tests/golden/lora_peft/model/transformer/config.json");
  static const auto base = std::make_shared<const TensorFile>(
      TensorFile::open("tests/golden/lora_peft/model/transformer"));
  static const std::string encoder = "tests/golden/umt5/model/text_encoder";
  static const auto text = open_text_encoder(encoder + "/config.json");
  const std::string path = anonymous_file(bytes);
  refused_or_done([&] {
    const Lora file{.file = path, .scale = 0.5};
    std::vector<std::string> notes;
    auto encoded = std::make_shared<const TensorFile>(TensorFile::open(encoder));
    const TextEncoderWeights encoders[] = {{*text, encoded}};
    change_text_encoders(encoders, {&file, 1}, notes);
    if (encoded->is_derived()) use(*encoded);
    use(with_loras(base, *model, {&file, 1}, notes));
  });
}

void safetensors_index(Bytes bytes) {
  static const Folder folder;
  static const bool shards = [] {
    const Tensor value(DType::kF32, {2});
    write_safetensors(folder / "a.safetensors", {{"a", value.view()}, {"b", value.view()}});
    write_safetensors(folder / "b.safetensors", {{"c", value.view()}});
    return true;
  }();
  CHECK(shards);
  const std::string path = folder.write("model.safetensors.index.json", bytes);
  refused_or_done([&] { use(TensorFile::open(path)); });
}

// All readers read the same bytes. Each refuses the others' files after a few keys.
void config(Bytes bytes) {
  const std::string path = anonymous_file(bytes);
  refused_or_done([&] {
    const WanConfig wan = WanConfig::from_json_file(path);
    CHECK(!to_string(wan).empty() && wan.eps > 0 && std::isfinite(wan.eps), to_string(wan));
    if (wan.layers <= 64) CHECK(parameter_count(wan_tensors(wan)) > 0);
  });
  refused_or_done([&] {
    const WanVaeConfig vae = WanVaeConfig::from_json_file(path);
    CHECK(parameter_count(wan_vae_tensors(vae)) > 0);
    CHECK(vae.traits().latent_frames(vae.traits().frames(3)) == 3);
  });
  refused_or_done([&] {
    const Umt5Config text = Umt5Config::from_json_file(path);
    if (text.num_layers <= 64) CHECK(parameter_count(umt5_tensors(text)) > 0);
  });
  refused_or_done([&] {
    const Wav2Vec2Config audio = Wav2Vec2Config::from_json_file(path);
    CHECK(audio.hop() > 0 && audio.window() > 0);
    if (audio.blocks.layers <= 64) CHECK(parameter_count(wav2vec2_tensors(audio)) > 0);
  });
  refused_or_done([&] {
    const DecoderConfig language = DecoderConfig::from_json_file(path);
    CHECK(language.heads % language.kv_heads == 0);
    if (language.layers <= 64) CHECK(parameter_count(decoder_tensors(language)) > 0);
  });
  refused_or_done([&] {
    const Sampler sampler(SamplerConfig::from_json_file(path), 3);
    CHECK(sampler.sigmas().back() == 0);
  });
}

// A config of any component, of the class that it names.
void component(Bytes bytes) {
  const std::string path = anonymous_file(bytes);
  refused_or_done([&] {
    if (const std::optional<ComponentFacts> facts = component_facts(path)) {
      CHECK(parameter_count(facts->tensors) > 0, facts->class_name);
      if (facts->part == "transformer") {
        const TransformerTraits traits = open_transformer(path)->traits();
        CHECK(traits.width > 0 && std::isfinite(traits.time_scale), traits.width);
      }
    }
  });
}

// The pictures of a tower that takes 28 pixels per side.
void preprocessor(Bytes bytes) {
  const std::string path = anonymous_file(bytes);
  refused_or_done([&] {
    const ClipPreprocessing how = read_clip_preprocessing(path, 28);
    if (how.shortest_edge > 64) return;  // the picture would become large
    Frame picture(5, 3);
    std::ranges::fill(picture.rgb, uint8_t{200});
    const Tensor pixels(DType::kF32, {3, how.size, how.size});
    clip_pixels(picture, how, pixels.view());
    const float* values = pixels.view().as<float>();
    for (int64_t i = 0; i < pixels.view().count(); ++i) CHECK(std::isfinite(values[i]), values[i]);
  });
}

// The colours of a VAE with two latent channels.
void preview(Bytes bytes) {
  const std::string path = anonymous_file(bytes);
  refused_or_done([&] {
    const PreviewFit fit = read_preview_fit(path, 2);
    for (const ColourMap& map : {fit.map, fit.first.value_or(fit.map)}) {
      CHECK(map.rgb.size() == 2, map.rgb.size());
      for (const auto& colour : {map.rgb[0], map.rgb[1], map.constant})
        for (const float value : colour) CHECK(std::abs(value) <= 1e4f, value);
    }
  });
}

void model_index(Bytes bytes) {
  static const Folder indexed, described;
  static const std::string parts[] = {"transformer", "text_encoder", "tokenizer", "scheduler",
                                      "vae"};
  static const bool linked = [] {
    const std::string pocket = "models/pocket/";
    for (const std::string& part : parts) indexed.link(part, pocket + part);
    indexed.link("transformer_2", pocket + "transformer");
    return true;
  }();
  CHECK(linked);
  indexed.write("model_index.json", bytes);
  refused_or_done([&] { open_model_directory(indexed.path()); });
  described.write("weft.json", bytes);
  ModelDirectory model;
  model.path = described.path();
  refused_or_done([&] { default_settings(model); });
}

// Reads the case file, and runs the light stages, whose work the case file alone determines.
void verify_case(Bytes bytes) {
  static const Folder folder;
  static const bool linked = [] {
    folder.link("model", "tests/golden/pipeline_t2v/model")
        .link("inputs.safetensors", "tests/golden/scheduler_euler_n1_s3_0/inputs.safetensors");
    return true;
  }();
  CHECK(linked);
  const std::string path = anonymous_file(bytes);
  refused_or_done([&] {
    const nlohmann::json spec = read_json_file(path);
    stage_limits(folder.path(), spec);
    const std::string stage = json_string(spec, "stage", path);
    std::vector<VerifyRow> rows;
    for (const char* light : {"scheduler", "noise", "tokenizer", "text_clean"})
      if (stage == light) run_stage(folder.path(), spec, {.threads = 1}, rows);
  });
}

void use(const SentencePieceTokenizer& tokenizer, std::string_view text, int max_length) {
  const std::vector<int32_t> ids = tokenizer.encode(text, max_length);
  CHECK(!ids.empty() && static_cast<int>(ids.size()) <= max_length && ids.back() == kEndId,
        ids.size());
  for (const int32_t id : ids) CHECK(id >= 0 && id < tokenizer.vocab_size(), id);
}

void tokenizer_model(Bytes bytes) {
  refused_or_done([&] {
    const auto tokenizer = SentencePieceTokenizer::from_bytes(text_of(bytes), "spiece.model");
    for (const char* text : {"", "a red ball", "\xc3\x84\xef\xbc\xa1\xf0\x9f\x9a\x80 \xe7\x8c\xab"})
      use(tokenizer, text, 16);
  });
}

void tokenizer_input(Bytes bytes) {
  static const auto tokenizer =
      SentencePieceTokenizer::load("models/pocket/tokenizer/spiece.model");
  const std::string_view text = text_of(bytes);
  use(tokenizer, text, 24);
  const std::string cleaned = clean_prompt(text);
  CHECK(encode_utf8(decode_utf8(cleaned)) == cleaned, cleaned.size());
  use(tokenizer, cleaned, 512);
}

void use(const ByteBpeTokenizer& tokenizer, std::string_view text) {
  for (const AddedTokens added : {AddedTokens::kSplit, AddedTokens::kAsText}) {
    const std::vector<int32_t> ids = tokenizer.encode(text, added);
    StreamingDecoder decoder(tokenizer, SpecialTokens::kKeep);
    std::string streamed;
    for (const int32_t id : ids) {
      CHECK(id >= 0 && id < tokenizer.size(), id);
      streamed += decoder.push(id);
    }
    streamed += decoder.finish();
    CHECK(streamed == tokenizer.decode(ids), streamed);
  }
}

// Says what a weights file without a config holds.
void part_file(Bytes bytes) {
  static const Folder folder;
  static const bool linked = [&] {
    folder.link("x.gguf", anonymous_file(bytes)).link("x.safetensors", anonymous_file(bytes));
    return true;
  }();
  CHECK(linked);
  anonymous_file(bytes);
  const std::string path =
      folder / (text_of(bytes).starts_with("GGUF") ? "x.gguf" : "x.safetensors");
  refused_or_done([&] {
    lora_family(open_weights(path));
    for (const ComponentFacts& facts : held_components(path))
      CHECK(
          !facts.class_name.empty() && (facts.tensors.empty() ? !facts.description.empty()
                                                              : parameter_count(facts.tensors) > 0),
          facts.part);
  });
}

// The tokenizer in the metadata of a GGUF file.
void gguf_tokenizer(Bytes bytes) {
  static const Folder folder;
  static const bool linked = [&] {
    folder.link("x.gguf", anonymous_file(bytes));
    return true;
  }();
  CHECK(linked);
  anonymous_file(bytes);
  const std::string path = folder / "x.gguf", text = "a red ball \xc3\x84";
  refused_or_done([&] { use(open_sentencepiece(path), text, 16); });
  refused_or_done([&] { use(open_byte_bpe(path), text); });
}

// Takes the bytes up to the first 0 as a tokenizer.json, and then as a merge patch (RFC 7386) for a
// valid one. The rest is a text to encode.
void tokenizer_json(Bytes bytes) {
  static const nlohmann::json sound = [] {  // cut to a few merges, for speed
    auto file = read_json_file("tests/golden/tokenizer_bpe/model/tokenizer/tokenizer.json");
    constexpr int kMerges = 12;
    auto& merges = file["model"]["merges"];
    merges.erase(merges.begin() + kMerges, merges.end());
    nlohmann::json vocab;
    for (const auto& [token, id] : file["model"]["vocab"].items())
      if (id < 256 + kMerges) vocab[token] = id;
    file["model"]["vocab"] = vocab;
    return file;
  }();
  const std::string_view all = text_of(bytes), json = all.substr(0, all.find('\0'));
  const std::string_view text = all.substr(std::min(all.size(), json.size() + 1));
  refused_or_done([&] { use(ByteBpeTokenizer::from_json(json, "tokenizer.json"), text); });
  refused_or_done([&] {
    nlohmann::json changed = sound;
    changed.merge_patch(parse_json(json, "patch"));
    use(ByteBpeTokenizer::from_json(changed.dump(), "tokenizer.json"), text);
  });
}

// Takes the bytes up to the first 0 as a merge patch (RFC 7386) for a valid vocabulary with merges.
// The rest is a text to encode.
void clip_tokenizer(Bytes bytes) {
  static const nlohmann::json sound = [] {
    const std::string folder = "tests/golden/tokenizer_clip/model/tokenizer/";
    return nlohmann::json{{"vocab", read_json_file(folder + "vocab.json")},
                          {"merges", {"t h", "i n", "th in"}}};
  }();
  const std::string_view all = text_of(bytes), patch = all.substr(0, all.find('\0'));
  const std::string_view text = all.substr(std::min(all.size(), patch.size() + 1));
  refused_or_done([&] {
    nlohmann::json changed = sound;
    changed.merge_patch(parse_json(patch, "patch"));
    const auto tokenizer = ClipTokenizer::from_json(
        json_field(changed, "vocab", "patch"), json_field(changed, "merges", "patch"), "patch");
    const std::vector<int32_t> ids = tokenizer.encode(text, 77);
    CHECK(ids.size() >= 2 && ids.size() <= 77, ids.size());
  });
}

void sound(Bytes bytes) {
  const std::string path = anonymous_file(bytes);
  refused_or_done([&] {
    const std::unique_ptr<SoundSource> source = open_sound(path, 16000);
    std::vector<float> samples(4096);
    for (int count = 0; count < 64; ++count) {
      const size_t read = source->read(samples);
      if (read == 0) return;
      for (const float value : std::span(samples).first(read))
        CHECK(value >= -1 && value <= 1, value);
    }
  });
}

void media(Bytes bytes) {
  constexpr int64_t kPixels = int64_t{1} << 22;  // larger ones take seconds and test nothing more
  const std::string path = anonymous_file(bytes);
  MediaInfo info;
  refused_or_done([&] { info = probe_media(path); });
  if (int64_t{info.width} * info.height > kPixels) return;
  if (info.container == "png") {
    refused_or_done([&] {
      const Frame frame = read_png(path);
      CHECK(frame.width == info.width && frame.height == info.height, frame.width, frame.height);
    });
    return;
  }
  refused_or_done([&] {
    VideoReader reader(path);
    Frame frame;
    for (int count = 0; count < 4 && reader.next(frame); ++count)
      CHECK(frame.rgb.size() == size_t{3} * frame.width * frame.height, frame.rgb.size());
  });
}

void picture(Bytes bytes) {
  constexpr int64_t kPixels = int64_t{1} << 20;  // larger ones take seconds and test nothing more
  refused_or_done([&] {
    const PictureHeader header = read_picture_header("picture", text_of(bytes));
    CHECK(header.orientation >= 1 && header.orientation <= 8, header.orientation);
    if (int64_t{header.width} * header.height > kPixels) return;
    const Frame frame = decode_picture("picture", std::string(text_of(bytes)));
    CHECK(frame.width * frame.height == header.width * header.height, frame.width, frame.height);
    CHECK(frame.rgb.size() == size_t{3} * frame.width * frame.height, frame.rgb.size());
  });
}

// A request passes whole and within the limits, needs more bytes, or is refused with a status.
void http_request(Bytes bytes) {
  ServerLimits limits;
  limits.header_bytes = 1024;
  limits.header_fields = 8;
  limits.uri_bytes = 64;
  limits.body_bytes = 256;
  limits.body_chunks = 4;
  const ReadRequest read = read_request(text_of(bytes), limits);
  CHECK(read.status == 0 || read.status == 200 || (read.status >= 400 && read.status < 500),
        read.status);
  if (read.status != 200) return;
  CHECK(read.request.path.size() + read.request.query.size() <= limits.uri_bytes);
  CHECK(read.request.path.starts_with('/') && read.request.body.size() <= limits.body_bytes);
  CHECK(read.request.headers.size() <= limits.header_fields);
  const bool both = read.request.headers.contains("content-length") &&
                    read.request.headers.contains("transfer-encoding");
  CHECK(!both);
}

void read_client_request(const HttpRequest& request, const ClientModel& model) {
  refused_or_done([&] {
    const ClientRequest read = client_request(client_fields(request), model);
    CHECK(read.model == "pocket", read.model);
    const nlohmann::json fields = parse_json(read.job.fields, "fields");
    CHECK(fields.contains("prompt"), read.job.fields);
    // No parameter reaches a file, a name or a weight of the server's machine.
    for (const char* hidden : {"id", "output", "endless", "transformer", "vae", "image_sha256"})
      CHECK(!fields.contains(hidden), hidden);
    for (const char* given : {"image", "last_image", "audio"})
      if (const auto url = fields.find(given); url != fields.end())
        CHECK(lowercase(url->get<std::string>().substr(0, 5)) == "data:", given);
    for (const nlohmann::json& url : fields.value("reference", nlohmann::json::array()))
      CHECK(lowercase(url.get<std::string>().substr(0, 5)) == "data:");
    JobSpec job;
    read_job(
        fields, [](const std::string& field) { return field; }, job);
  });
}

// A request of an OpenAI client for a video or a picture: a body, or after a 0 the parts of a form,
// "name=text" and "name<file", with a 0 after each.
void openai_request(Bytes bytes) {
  static const ClientModel draws{.ids = {"pocket"},
                                 .name = "pocket",
                                 .has_teacache = true,
                                 .boundary_ratio = 0.5,
                                 .most_pictures = 2,
                                 .hears = true};
  static const ClientModel edits{.ids = {"pocket"}, .name = "pocket", .most_references = 3};
  HttpRequest request;
  request.body = text_of(bytes);
  if (request.body.starts_with('\0')) {
    Form form;
    for (size_t at = 1, end = 0; at < request.body.size() && form.size() < 64; at = end + 1) {
      end = std::min(request.body.find('\0', at), request.body.size());
      const std::string part = request.body.substr(at, end - at);
      const size_t mark = std::min(part.find_first_of("=<"), part.size());
      form.push_back({.name = part.substr(0, mark)});
      if (part.substr(mark, 1) == "<")
        form.back().file = "/tmp/" + std::to_string(form.size());
      else if (mark < part.size())
        form.back().text = part.substr(mark + 1);
    }
    request.form = std::make_shared<const Form>(std::move(form));
  }
  for (const ClientModel& model : {draws, edits}) read_client_request(request, model);
}

// A sound inside a job becomes a file in the folder, or is refused.
void sent_file(Bytes bytes) {
  static const Folder folder;
  JobSpec job;
  job.request.audio.path = text_of(bytes);
  refused_or_done([&] {
    save_sent_files(job, folder / "job", "the job");
    if (bytes.empty()) return;
    CHECK(job.request.audio.path.starts_with(folder / "job.audio"), job.request.audio.path);
    CHECK(fs::file_size(job.request.audio.path) <= bytes.size());
    remove_sent_files(job);
  });
}

// A text message, or the bytes of a packet of sound.
void stream_message(Bytes bytes) {
  refused_or_done([&] { read_client_message(text_of(bytes)); });
  refused_or_done([&] {
    const SoundPacket packet = read_sound_packet(bytes);
    const auto header = to_bytes(packet.header);
    CHECK(std::ranges::equal(header, bytes.first(header.size())));
  });
}

constexpr Target kTargets[] = {
    {"safetensors", 4096, safetensors},
    {"gguf", 4096, gguf},
    {"scaled_weights", 4096, scaled_weights},
    {"lora", 4096, lora},
    {"part_file", 4096, part_file},
    {"gguf_tokenizer", 8192, gguf_tokenizer},
    {"safetensors_index", 2048, safetensors_index},
    {"config", 2048, config},
    {"component", 2048, component},
    {"preprocessor", 2048, preprocessor},
    {"preview", 2048, preview},
    {"model_index", 2048, model_index},
    {"verify_case", 2048, verify_case},
    {"tokenizer_model", 4096, tokenizer_model},
    {"tokenizer_input", 1024, tokenizer_input},
    {"tokenizer_json", 2048, tokenizer_json},
    {"clip_tokenizer", 2048, clip_tokenizer},
    {"media", 16384, media},
    {"picture", 4096, picture},
    {"sound", 16384, sound},
    {"http_request", 2048, http_request},
    {"multipart", 2048, multipart},
    {"openai_request", 2048, openai_request},
    {"sent_file", 2048, sent_file},
    {"stream_message", 2048, stream_message},
};

}  // namespace

std::span<const Target> targets() { return kTargets; }

}  // namespace weft::fuzz
