#pragma once
// SoundBands: the loudness of a sound in frequency bands, one row per picture, as an avatar's model
// hears it. It works piece by piece: the rows do not depend on how the sound was cut, to the bit.
//
// Picture k of 25 per second owns the samples [640 k, 640 k + 640) of a sound of 16 kHz. Its row is
// made of the 1024 samples that end with them (384 of left context, no look-ahead; zeros before the
// start), in f64:
//   y[j] = x[j] (0.5 - 0.5 cos(2 pi j / 1024)): a periodic Hann window, whose squares sum to 384
//   P[b] = |sum_j y[j] exp(-2 pi i b j / 1024)|^2: bin b is at 15.625 b Hz
//   E[c] = sum_b h_c(b) P[b] / 384
//   row[c] = clip((ln(1e-6 + E[c]) + 7) / 4, -2, 4)
// h_c is a triangle over frequency of peak 1 with corners e[c], e[c+1], e[c+2]; the 34 corners are
// equally spaced from 60 to 7600 Hz in mel(f) = 2595 log10(1 + f / 700) (HTK Book, section 5.6).
#include <array>
#include <complex>
#include <cstdint>
#include <span>
#include <vector>

namespace weft {

class SoundBands {
 public:
  static constexpr int kRate = 16000;  // samples per second
  static constexpr int kHop = 640;     // samples per picture
  static constexpr int kWindow = 1024;
  static constexpr int kBands = 32;
  // The value of every band in digital silence.
  static float silence();

  SoundBands();

  // Appends kBands values for every picture whose last sample has come. Samples are finite.
  void push(std::span<const float> samples, std::vector<float>& rows);
  // Fills the last picture up with zeros, appends its row, and begins anew. A sound that ends with
  // a picture has no such row.
  void finish(std::vector<float>& rows);

 private:
  struct Band {
    int first;                    // bin of weights[0]
    std::vector<double> weights;  // h_c of the bins in the triangle
  };

  void add_row(std::vector<float>& rows);
  void transform();  // spectrum_ in place, by a radix-2 Fourier transform

  std::array<float, kWindow> window_{};  // the latest samples, the newest one last
  int fresh_ = 0;                        // of them, samples of the next picture
  std::array<Band, kBands> bands_;
  std::array<double, kWindow> hann_;
  std::array<std::complex<double>, kWindow / 2> roots_;  // exp(-2 pi i j / 1024)
  std::array<std::complex<double>, kWindow> spectrum_;
};

}  // namespace weft
