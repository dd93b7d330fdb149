#pragma once
// A small model of speech to video of random weights, in the layout of its authors' repository, and
// the sound and the picture of a job of it.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/json.h"
#include "io/media/image.h"
#include "models/registry.h"
#include "tests/models/slices_testing.h"

namespace weft::test {

// Mono 16-bit WAV.
inline void write_wav(const std::string& path, int rate, const std::vector<float>& samples) {
  std::ofstream out(path, std::ios::binary);
  const auto number = [&](uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out.put(static_cast<char>(value >> 8 * i));
  };
  const auto size = static_cast<uint32_t>(2 * samples.size());
  out << "RIFF";
  number(36 + size, 4);
  out << "WAVEfmt ";
  number(16, 4);
  number(1, 2);
  number(1, 2);
  number(static_cast<uint32_t>(rate), 4);
  number(static_cast<uint32_t>(2 * rate), 4);
  number(2, 2);
  number(16, 2);
  out << "data";
  number(size, 4);
  for (const float sample : samples)
    number(static_cast<uint32_t>(std::lround(sample * 32767)) & 0xffff, 2);
}

// A tone whose pitch and loudness change.
inline std::vector<float> tone(double seconds, int rate) {
  std::vector<float> out(static_cast<size_t>(std::lround(seconds * rate)));
  for (size_t i = 0; i < out.size(); ++i) {
    const double t = static_cast<double>(i) / rate;
    out[i] = static_cast<float>(0.5 * (1 + 0.5 * std::sin(5 * t)) * 0.5 *
                                std::sin(2 * M_PI * (200 + 40 * std::sin(t)) * t));
  }
  return out;
}

// A picture of any colours.
inline void write_face(const std::string& path, int width, int height) {
  Frame face(width, height);
  for (size_t i = 0; i < face.rgb.size(); ++i) face.rgb[i] = static_cast<uint8_t>(i * 7 % 251);
  write_png(path, face, {}, Overwrite::kReplace);
}

struct SpeechModel {
  explicit SpeechModel(const std::string& folder) : path(folder) {
    namespace fs = std::filesystem;
    const std::string golden = "tests/golden/", small = golden + "pipeline_t2v/model/";
    fs::remove_all(path);
    fs::create_directories(path + "/google");
    nlohmann::json config = read_json_file(golden + "s2v_first_clip/model/transformer/config.json");
    config["audio_dim"] = 48;
    config["text_dim"] = 32;
    config["patch_size"] = {1, 2, 2};
    std::ofstream(path + "/config.json") << config.dump();
    write_file(path + "/diffusion_pytorch_model.safetensors",
               random_weights(open_transformer(path + "/config.json")->tensors(), 5));
    fs::copy(small + "tokenizer", path + "/google/umt5-xxl", fs::copy_options::recursive);
    fs::copy(small + "text_encoder/model.safetensors", path + "/umt5_small.safetensors");
    fs::copy(small + "vae/diffusion_pytorch_model.safetensors", path + "/small_vae.safetensors");
    const std::string hears = path + "/wav2vec2-large-xlsr-53-english";
    fs::create_directories(hears);
    nlohmann::json encoder =
        read_json_file(golden + "wav2vec2_tiny/model/audio_encoder/config.json");
    encoder["num_hidden_layers"] = 24;
    std::ofstream(hears + "/config.json") << encoder.dump();
    write_file(hears + "/model.safetensors",
               random_weights(open_audio_encoder(hears + "/config.json")->tensors(), 7));
  }
  ~SpeechModel() { std::filesystem::remove_all(path); }
  SpeechModel(const SpeechModel&) = delete;
  SpeechModel& operator=(const SpeechModel&) = delete;

  const std::string path;
};

}  // namespace weft::test
