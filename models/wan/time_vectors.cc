#include <cmath>

#include "kernels/copy.h"
#include "models/wan/names.h"
#include "models/wan/transformer.h"

namespace weft {
namespace {

// The values of a tensor as f32.
std::vector<float> values(Stream& stream, const TensorFile& file, const std::string& name) {
  const TensorView stored = file.view(name);
  std::vector<float> out(static_cast<size_t>(stored.count()));
  copy(stream, stored.reshape({stored.count()}),
       TensorView(out.data(), DType::kF32, {stored.count()}));
  file.drop_pages(stored);
  return out;
}

// x [in][times] becomes weight x + bias [out][times].
std::vector<double> linear(Stream& stream, const TensorFile& file, const std::string& name,
                           const std::vector<double>& x, size_t times) {
  const std::vector<float> weight = values(stream, file, name + ".weight"),
                           bias = values(stream, file, name + ".bias");
  const size_t in = x.size() / times;
  std::vector<double> out(bias.size() * times);
  for (size_t row = 0; row < bias.size(); ++row) {
    double* sums = &out[row * times];
    for (size_t column = 0; column < in; ++column)
      for (size_t t = 0; t < times; ++t)
        sums[t] += double{weight[row * in + column]} * x[column * times + t];
    for (size_t t = 0; t < times; ++t) sums[t] += double{bias[row]};
  }
  return out;
}

}  // namespace

std::vector<std::vector<float>> wan_time_vectors(const WanConfig& config, const TensorFile& file,
                                                 std::span<const float> times) {
  Stream stream = Stream::cpu(1);
  const WanNames names = detect_wan_names(file);
  const TransformerTraits traits = config.traits();
  const size_t count = times.size(), in = static_cast<size_t>(config.freq_dim);
  std::vector<double> x(in * count);
  for (size_t t = 0; t < count; ++t) {
    std::vector<float> embedding(in);
    time_embedding(traits.time_offset + traits.time_scale * times[t],
                   TensorView(embedding.data(), DType::kF32, {config.freq_dim}));
    for (size_t i = 0; i < in; ++i) x[i * count + t] = embedding[i];
  }
  const auto layer = [&](const std::string& name) {
    std::string spelled = names("condition_embedder.time_embedder." + name + ".weight");
    spelled.resize(spelled.rfind('.'));
    x = linear(stream, file, spelled, x, count);
  };
  layer("linear_1");
  for (double& value : x) value /= 1 + std::exp(-value);
  layer("linear_2");
  std::vector<std::vector<float>> out(count);
  for (size_t t = 0; t < count; ++t)
    for (size_t i = t; i < x.size(); i += count) out[t].push_back(static_cast<float>(x[i]));
  return out;
}

}  // namespace weft
