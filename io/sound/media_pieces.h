#pragma once
// Live movies as pieces that a server hands to its clients, in three forms.
//
//   form     header piece   pictures                                sound
//   MP4      ftyp and moov  one fragment: moof and mdat             AAC, within the fragments
//   Annex B  no bytes       one picture: an access unit of H.264    s16 samples, little endian
//   JPEG     no bytes       one picture: a baseline JPEG            the same
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/sound/movie.h"

namespace weft {

enum class PieceKind : uint8_t { kHeader, kPictures, kSound };

struct MediaPiece {
  PieceKind kind{};
  // For the player, in the header: video/mp4; codecs="avc1.64000A, mp4a.40.2" (MSE), avc1.42C00A
  // (WebCodecs) or image/jpeg.
  std::string mime{};
  int64_t first = 0;  // index of the first picture or sample
  int64_t count = 0;  // pictures or samples; the last fragment of an MP4 may have sound alone
  bool key = false;   // of pictures: a player can begin with it
  std::vector<uint8_t> bytes{};
};

// Gets every piece, within push() and finish(); the header comes first and once.
using TakePiece = std::function<void(MediaPiece&&)>;

// The fragments of make_live_movie().
std::unique_ptr<MovieSink> make_movie_pieces(TakePiece take, const MovieSettings& settings);

// Each push() gives its picture, and then its samples if it has any. The profile is constrained
// baseline, so no picture is reordered. IDR pictures carry the parameter sets: the first one, those
// that push() asks for, and the one fragment * key_every pictures after another. video.encoder is
// not used.
std::unique_ptr<MovieSink> make_annexb_pieces(TakePiece take, const MovieSettings& settings);

// The same with pictures that are all keys.
std::unique_ptr<MovieSink> make_jpeg_pieces(TakePiece take, const MovieSettings& settings);

}  // namespace weft
