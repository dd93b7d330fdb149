#pragma once
// Audio features: what each frame of a video hears. They are the hidden states of an audio encoder,
// resampled to 30 per second, of which every frame takes the one nearest in time (arXiv 2508.18621,
// section 3). Clips are whole: the sound is followed by zeros.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/parts/rank.h"
#include "models/encoder.h"

namespace weft {

inline constexpr double kFeatureRate = 30;  // rows per second

// The number of rows at kFeatureRate of a sound with so many samples. Error(kMedia) for a sound
// that is shorter than one row.
int64_t feature_rows(const AudioEncoderTraits& traits, int64_t samples);

// Resamples a hidden state [T, d] to out [n, d], both f32 on the host, by linear interpolation: the
// first and the last rows stay, and the others are evenly spaced between them.
void resample_rows(const TensorView& state, const TensorView& out);

// The row that each frame takes, of `rows`, or -1 for silence after the last one. There is one
// chunk of `chunk_frames` frames for every whole chunk that the rows fill, and one more.
std::vector<int64_t> rows_of_frames(int64_t rows, double fps, int64_t chunk_frames);

// Writes the rows [n, d] that the frames take to the columns of out [d, frames], zeros for -1. Both
// are f32 on the host.
void take_rows(const TensorView& rows, std::span<const int64_t> of_frames, const TensorView& out);

// Reads a sound in any format of open_sound (io/sound/audio.h) as samples [n] f32 at `rate` on the
// host. A sound that is longer than kMostEncodedSeconds is an Error(kMedia).
Tensor read_sound(const std::string& path, int64_t rate);

// A sound, and the rows of it that frames take.
struct HeardRows {
  TensorView samples;  // [n] f32 on the host
  int64_t rows = 0;    // feature_rows()
  std::span<const int64_t> taken;
};

// Writes the features [hidden states, columns, frames] f32 of the frames, on the host. The Context
// is that of AudioEncoder::encode. Throws Error(kNonFinite).
void encode_frames(Context& context, const AudioEncoder& encoder, const HeardRows& heard,
                   const TensorView& features);

// A sound, and the video that it is heard with.
struct HeardSound {
  // [n] f32 on the host, at the rate of the model's audio encoder. Only the root's have values:
  // they are sent to the other ranks that encode.
  TensorView samples;
  double fps = 0;
  int64_t chunk_frames = 0;
};

// Returns the features [hidden states, columns, frames] f32 of whole chunks, on the host of every
// rank. The ranks that hold a part of the encoder compute them together, and the root sends them to
// the others. The encoder is loaded for it and released. All ranks call it. Throws
// Error(kNonFinite).
Tensor encode_audio(const Rank& rank, const HeardSound& sound);

}  // namespace weft
