#include "apps/serve/stream_messages.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "io/nearest.h"
#include "kernels/check.h"

namespace weft {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[] = {'W', 'E', 'F', 'T'};
constexpr int kMostSamples = 48000;
constexpr int64_t kLongestTime = int64_t{1} << 53;  // JSON's numbers have no more bits

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorKind::kUsage, message); }

template <class T>
T at(std::span<const uint8_t> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// The fields of one message, each of which is read at most once. What is left at the end is
// unknown.
class Fields {
 public:
  Fields(const nlohmann::json& object, const std::string& type) : object_(object), type_(type) {
    known_.push_back("type");
    known_.push_back("client_ts");  // of the client's log
  }

  std::optional<std::string> text(const char* name, size_t most = kSpokenBytes) {
    const nlohmann::json* value = find(name);
    if (!value) return std::nullopt;
    if (!value->is_string()) wrong(name, *value, "a text");
    const auto& text = value->get_ref<const std::string&>();
    if (text.empty() || text.size() > most)
      refuse(label(name) + " has " + std::to_string(text.size()) + " bytes, legal: 1 ... " +
             std::to_string(most));
    return text;
  }
  std::optional<int64_t> integer(const char* name, int64_t least, int64_t most) {
    const nlohmann::json* value = find(name);
    if (!value) return std::nullopt;
    const std::string legal = std::to_string(least) + " ... " + std::to_string(most);
    if (!value->is_number_integer()) wrong(name, *value, legal);
    const bool above = value->is_number_unsigned() &&
                       value->get<uint64_t>() > static_cast<uint64_t>(std::max<int64_t>(most, 0));
    const auto number = above ? most : value->get<int64_t>();
    if (above || number < least || number > most) wrong(name, *value, legal);
    return number;
  }
  bool flag(const char* name) {
    const nlohmann::json& value = needed(name);
    if (!value.is_boolean()) wrong(name, value, "true or false");
    return value.get<bool>();
  }
  std::optional<std::string> one_of(const char* name, std::span<const char* const> legal) {
    const std::optional<std::string> value = text(name);
    if (value && std::ranges::find(legal, *value) == legal.end())
      wrong(name, *value, listed(legal));
    return value;
  }
  std::optional<Fields> object(const char* name) {
    const nlohmann::json* value = find(name);
    if (!value) return std::nullopt;
    if (!value->is_object()) wrong(name, *value, "an object");
    return Fields(*value, type_ + "." + name);
  }
  const nlohmann::json& needed(const char* name) {
    const nlohmann::json* value = find(name);
    if (!value) refuse(label(name) + " is missing");
    return *value;
  }
  // Refuses fields that were not asked for.
  void end() const {
    for (const auto& [name, value] : object_.items()) {
      if (std::ranges::find(known_, name) != known_.end()) continue;
      const std::string near = nearest(name, known_);
      refuse(label(name.substr(0, 64)) + " is no field of this message" +
             (near.empty() ? "; legal: " + listed(known_) : did_you_mean(near)));
    }
  }

 private:
  std::string label(const std::string& name) const { return type_ + ": " + name; }
  [[noreturn]] void wrong(const char* name, const nlohmann::json& value, const std::string& legal) {
    refuse(label(name) + " is " + value.dump().substr(0, 100) + ", legal: " + legal);
  }
  const nlohmann::json* find(const char* name) {
    known_.emplace_back(name);
    return json_has(object_, name) ? &object_.at(name) : nullptr;
  }

  const nlohmann::json& object_;
  const std::string type_;
  std::vector<std::string> known_;
};

ClientMessage read_init(Fields& fields) {
  static constexpr const char* kContainers[] = {"fmp4", "annexb", "jpeg"};
  static constexpr const char* kCodecs[] = {"pcm_s16le"};
  SessionInit init;
  init.model = fields.text("model");
  init.caption = fields.text("caption");
  init.mood = fields.text("mood");
  init.size = fields.text("size", 16);
  if (const auto fps = fields.integer("fps", 1, 240)) init.fps = static_cast<int>(*fps);
  if (const auto seed = fields.integer("seed", 0, kLongestTime)) init.seed = *seed;
  if (const auto container = fields.one_of("container", kContainers))
    init.container = static_cast<MediaContainer>(std::ranges::find(kContainers, *container) -
                                                 std::begin(kContainers));
  fields.integer("target_latency_ms", 0, 60000);
  if (auto audio = fields.object("audio")) {
    audio->one_of("codec", kCodecs);
    audio->integer("channels", 1, 1);
    if (const auto rate = audio->integer("rate", 8000, 48000)) init.rate = static_cast<int>(*rate);
    audio->end();
  }
  return init;
}

ClientMessage read_resume(Fields& fields) {
  SessionResume resume;
  fields.needed("token");
  resume.token = *fields.text("token", 128);
  if (const auto time = fields.integer("time_us", -1, kLongestTime)) resume.time_us = *time;
  return resume;
}

ClientMessage read_text(Fields& fields) {
  fields.needed("text");
  return SpeakText{*fields.text("text")};
}

ClientMessage read_prompt(Fields& fields) {
  ChangeCaption change{fields.text("caption"), fields.text("mood")};
  if (!change.caption && !change.mood) fields.needed("caption");
  return change;
}

template <class T>
ClientMessage read_plain(Fields&) {
  return T{};
}

struct Reader {
  const char* type;
  ClientMessage (*read)(Fields& fields);
};
constexpr Reader kReaders[] = {
    {"session_init", read_init},
    {"session_resume", read_resume},
    {"text", read_text},
    {"prompt", read_prompt},
    {"listen", [](Fields& fields) -> ClientMessage { return Listen{fields.flag("on")}; }},
    {"pause", read_plain<Pause>},
    {"resume", read_plain<Resume>},
    {"flush", read_plain<Flush>},
    {"close", read_plain<Close>},
};

}  // namespace

std::array<uint8_t, PacketHeader::kBytes> to_bytes(const PacketHeader& header) {
  std::array<uint8_t, PacketHeader::kBytes> out{};
  std::memcpy(out.data(), kMagic, sizeof kMagic);
  std::memcpy(out.data() + 4, &header.type, 2);
  std::memcpy(out.data() + 6, &header.flags, 2);
  std::memcpy(out.data() + 8, &header.number, 4);
  std::memcpy(out.data() + 12, &header.length, 4);
  std::memcpy(out.data() + 16, &header.time_us, 8);
  return out;
}

SoundPacket read_sound_packet(std::span<const uint8_t> bytes) {
  if (bytes.size() < PacketHeader::kBytes)
    refuse("a packet of sound has " + std::to_string(bytes.size()) +
           " bytes, legal: a header of 24 and samples");
  if (std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0)
    refuse("a packet of sound does not begin with \"WEFT\"");
  SoundPacket packet;
  PacketHeader& header = packet.header;
  header = {.type = static_cast<PacketType>(at<uint16_t>(bytes, 4)),
            .flags = at<uint16_t>(bytes, 6),
            .number = at<uint32_t>(bytes, 8),
            .length = at<uint32_t>(bytes, 12),
            .time_us = at<int64_t>(bytes, 16)};
  const auto number = [](auto value) { return std::to_string(value); };
  if (header.type != PacketType::kSound)
    refuse("the type of a packet is " + number(at<uint16_t>(bytes, 4)) + ", legal: 1, sound");
  if (header.flags & ~kLastFlag)
    refuse("the flags of a packet of sound are " + number(header.flags) +
           ", legal: 0, or 4 for the last one of a turn");
  if (header.time_us < 0 || header.time_us > kLongestTime)
    refuse("the time of a packet of sound is " + number(header.time_us) + ", legal: 0 ... " +
           number(kLongestTime));
  const std::span<const uint8_t> payload = bytes.subspan(PacketHeader::kBytes);
  if (header.length > kMostSamples || payload.size() != size_t{2} * header.length)
    refuse("a packet of sound says it has " + number(header.length) + " samples and has " +
           number(payload.size()) + " bytes of them, legal: 2 bytes each, 0 ... " +
           number(kMostSamples) + " samples");
  packet.samples.resize(header.length);
  for (size_t i = 0; i < packet.samples.size(); ++i)
    packet.samples[i] = static_cast<float>(at<int16_t>(payload, 2 * i)) / 32768;
  return packet;
}

const char* name_of(MediaContainer container) {
  constexpr const char* kNames[] = {"fmp4", "annexb", "jpeg"};
  return kNames[static_cast<size_t>(container)];
}

ClientMessage read_client_message(std::string_view text) {
  nlohmann::json object;
  try {
    object = parse_json(text, "a message", JsonDialect::kStrict,
                        {.bytes = kMessageBytes, .values = 1000, .depth = 4});
  } catch (const Error& error) {
    refuse(error.what());
  }
  if (!object.is_object()) refuse("a message is no object; legal: {\"type\": ...}");
  std::vector<std::string> types;
  for (const Reader& reader : kReaders) types.emplace_back(reader.type);
  const std::string all = listed(types);
  if (!json_has(object, "type")) refuse("a message has no type; legal: " + all);
  const nlohmann::json& type = object.at("type");
  for (const Reader& reader : kReaders) {
    if (type != reader.type) continue;
    Fields fields(object, reader.type);
    ClientMessage message = reader.read(fields);
    fields.end();
    return message;
  }
  const std::string near = type.is_string() ? nearest(type.get<std::string>(), types) : "";
  refuse("the type of a message is " + type.dump().substr(0, 100) +
         (near.empty() ? ", legal: " + all : did_you_mean(near)));
}

std::string server_message(const char* type, Json fields) {
  fields["type"] = type;
  return fields.dump();
}

std::string to_message(const StreamError& error) {
  return server_message("error", {{"code", error.code},
                                  {"message", error.message},
                                  {"retryable", error.retryable},
                                  {"fatal", error.fatal}});
}

}  // namespace weft
