#pragma once
// The messages of a live session over a WebSocket: JSON texts in both directions, and binary ones
// of a header of 24 bytes and a payload: sound to the server, media to the client. All numbers of
// the header are little endian. Times are microseconds of the stream's own clock.
//
//   offset  bytes  field
//        0      4  magic, "WEFT"
//        4      2  type (PacketType)
//        6      2  flags (PacketFlag)
//        8      4  number of the packet in its direction, from 0
//       12      4  kSound: samples; all others: microseconds
//       16      8  time of the first sample or picture
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/json.h"

namespace weft {

enum class PacketType : uint16_t {
  kSound = 1,   // to the server: s16 samples of one channel
  kHeader = 2,  // fmp4: ftyp and moov
  kMedia = 3,   // fmp4: moof and mdat; annexb: one access unit of H.264; jpeg: one picture
  kHeard = 4,   // annexb and jpeg: the s16 samples that belong to the pictures
};

enum PacketFlag : uint16_t {
  kKeyFlag = 1,      // a player can begin with it
  kSilenceFlag = 2,  // the face does not speak
  kLastFlag = 4,     // the last of a turn (sound) or of the stream (media)
};

struct PacketHeader {
  static constexpr size_t kBytes = 24;
  PacketType type{};
  uint16_t flags = 0;
  uint32_t number = 0;
  uint32_t length = 0;  // samples, or microseconds
  int64_t time_us = 0;
};

std::array<uint8_t, PacketHeader::kBytes> to_bytes(const PacketHeader& header);

// A packet of sound, whose samples are in [-1, 1). Throws Error(kUsage) that names the field where
// the bytes are none: a wrong magic or type, an unknown flag, a negative time, or a length that is
// not that of the payload or is above a second of 48,000 samples.
struct SoundPacket {
  PacketHeader header;
  std::vector<float> samples;
};
SoundPacket read_sound_packet(std::span<const uint8_t> bytes);

// The form in which a client wants its media.
enum class MediaContainer : uint8_t { kFmp4, kAnnexB, kJpeg };
const char* name_of(MediaContainer container);

// The first message of a connection: a new session, or one to go on with.
struct SessionInit {
  std::optional<std::string> model, caption, mood, size;  // absent: the server's
  std::optional<int> fps;
  std::optional<uint64_t> seed;
  MediaContainer container = MediaContainer::kFmp4;
  int rate = 16000;  // of the sound that the client sends
};
struct SessionResume {
  std::string token;
  int64_t time_us = -1;  // of the last packet of media that was seen; -1: none
};
struct SpeakText {
  std::string text;
};
struct ChangeCaption {  // from the next turn on
  std::optional<std::string> caption, mood;
};
struct Listen {  // the face listens while the user speaks
  bool on = false;
};
struct Pause {};
struct Resume {};
struct Flush {};  // drops what is not played: the user interrupts
struct Close {};

using ClientMessage = std::variant<SessionInit, SessionResume, SpeakText, ChangeCaption, Listen,
                                   Pause, Resume, Flush, Close>;

// Reads a text message. Throws Error(kUsage) that names the field, the value and what is legal: an
// unknown type or field, a wrong value, a missing field, text that is not JSON or is above
// kMessageBytes.
constexpr size_t kMessageBytes = 64 * 1024;
constexpr size_t kSpokenBytes = 4096;  // of SpeakText, caption and mood
ClientMessage read_client_message(std::string_view text);

// A message of the server: {"type": type, ...fields}.
std::string server_message(const char* type, Json fields);
// {"type": "error", ...}. A fatal one is followed by the end of the connection.
struct StreamError {
  const char*
      code;  // "bad_message", "bad_request", "not_ready", "overloaded", "engine", "draining"
  std::string message;
  bool retryable = false, fatal = false;
};
std::string to_message(const StreamError& error);

}  // namespace weft
