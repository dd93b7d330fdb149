// The messages of a live session: what is legal is read, what is not is refused by its name.
#include "apps/serve/stream_messages.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "kernels/check.h"
#include "tests/support/error_of.h"

namespace weft {
namespace {

std::string message_error(std::string_view text) {
  return test::error_of([&] { read_client_message(text); }, ErrorKind::kUsage);
}

TEST(StreamMessages, ASessionInitHasTheServersValuesWhereItSaysNothing) {
  const auto init = std::get<SessionInit>(read_client_message(R"({"type":"session_init"})"));
  EXPECT_FALSE(init.model || init.caption || init.mood || init.size || init.fps || init.seed);
  EXPECT_EQ(init.container, MediaContainer::kFmp4);
  EXPECT_EQ(init.rate, 16000);
  const auto full = std::get<SessionInit>(read_client_message(
      R"({"type":"session_init","model":"pocket_avatar","caption":"a face","mood":"happy",
          "size":"96x96","fps":25,"seed":7,"container":"annexb","target_latency_ms":400,
          "audio":{"codec":"pcm_s16le","rate":48000,"channels":1},"client_ts":12.5})"));
  EXPECT_EQ(full.model, "pocket_avatar");
  EXPECT_EQ(full.caption, "a face");
  EXPECT_EQ(full.mood, "happy");
  EXPECT_EQ(full.size, "96x96");
  EXPECT_EQ(full.fps, 25);
  EXPECT_EQ(full.seed, 7u);
  EXPECT_EQ(full.container, MediaContainer::kAnnexB);
  EXPECT_EQ(full.rate, 48000);
}

TEST(StreamMessages, EveryTypeIsRead) {
  EXPECT_EQ(std::get<SessionResume>(
                read_client_message(R"({"type":"session_resume","token":"abc","time_us":40000})"))
                .time_us,
            40000);
  EXPECT_EQ(std::get<SpeakText>(read_client_message(R"({"type":"text","text":"Hello"})")).text,
            "Hello");
  EXPECT_EQ(std::get<ChangeCaption>(read_client_message(R"({"type":"prompt","mood":"calm"})")).mood,
            "calm");
  EXPECT_TRUE(std::get<Listen>(read_client_message(R"({"type":"listen","on":true})")).on);
  EXPECT_TRUE(std::holds_alternative<Pause>(read_client_message(R"({"type":"pause"})")));
  EXPECT_TRUE(std::holds_alternative<Resume>(read_client_message(R"({"type":"resume"})")));
  EXPECT_TRUE(
      std::holds_alternative<Flush>(read_client_message(R"({"type":"flush","client_ts":1})")));
  EXPECT_TRUE(std::holds_alternative<Close>(read_client_message(R"({"type":"close"})")));
}

TEST(StreamMessages, AFaultIsNamedWithItsValueAndWhatIsLegal) {
  const std::pair<const char*, const char*> kFaults[] = {
      {"", "a message"},
      {"[]", "a message is no object"},
      {R"({"type":"flush")", "a message"},
      {R"({"type":"flush","type":"close"})", "type"},
      {R"({})", "a message has no type; legal: session_init, session_resume, text"},
      {R"({"type":7})", "the type of a message is 7, legal: session_init"},
      {R"({"type":"sesion_init"})", "did you mean session_init?"},
      {R"({"type":"flush","now":1})", "flush: now is no field of this message"},
      {R"({"type":"session_init","sed":1})", "did you mean seed?"},
      {R"({"type":"session_init","seed":-1})", "session_init: seed is -1, legal: 0 ... "},
      {R"({"type":"session_init","seed":18446744073709551615})", "seed is 18446744073709551615"},
      {R"({"type":"session_init","seed":1.5})", "seed is 1.5, legal"},
      {R"({"type":"session_init","fps":"25"})", "fps is \"25\", legal: 1 ... 240"},
      {R"({"type":"session_init","container":"webm"})",
       "container is \"webm\", legal: fmp4, annexb, jpeg"},
      {R"({"type":"session_init","audio":7})", "audio is 7, legal: an object"},
      {R"({"type":"session_init","audio":{"rate":4000}})",
       "session_init.audio: rate is 4000, legal: 8000 ... 48000"},
      {R"({"type":"session_init","audio":{"channels":2}})", "channels is 2, legal: 1 ... 1"},
      {R"({"type":"session_init","audio":{"bits":8}})", "session_init.audio: bits is no field"},
      {R"({"type":"session_resume"})", "session_resume: token is missing"},
      {R"({"type":"text"})", "text: text is missing"},
      {R"({"type":"text","text":""})", "text: text has 0 bytes, legal: 1 ... 4096"},
      {R"({"type":"prompt"})", "prompt: caption is missing"},
      {R"({"type":"listen","on":1})", "listen: on is 1, legal: true or false"},
  };
  for (const auto& [text, wanted] : kFaults)
    EXPECT_NE(message_error(text).find(wanted), std::string::npos)
        << text << "\n  gave: " << message_error(text);
  const std::string spoken(kSpokenBytes + 1, 'a');
  EXPECT_NE(message_error(R"({"type":"text","text":")" + spoken + "\"}").find("4097 bytes"),
            std::string::npos);
  EXPECT_NE(message_error(std::string(kMessageBytes + 1, ' ')), "");
  EXPECT_NE(message_error(std::string(100, '[')), "");
}

std::vector<uint8_t> packet_bytes(PacketHeader header, const std::vector<int16_t>& samples) {
  const auto bytes = to_bytes(header);
  std::vector<uint8_t> out(bytes.begin(), bytes.end());
  for (const int16_t sample : samples) {
    out.push_back(uint8_t(sample & 0xff));
    out.push_back(uint8_t(sample >> 8 & 0xff));
  }
  return out;
}

TEST(StreamMessages, ASoundPacketHasItsSamples) {
  const auto bytes = packet_bytes({.type = PacketType::kSound,
                                   .flags = kLastFlag,
                                   .number = 0x01020304,
                                   .length = 3,
                                   .time_us = 40'000},
                                  {-32768, 0, 16384});
  ASSERT_EQ(bytes.size(), 30u);
  EXPECT_EQ(std::string(bytes.begin(), bytes.begin() + 4), "WEFT");
  EXPECT_EQ(bytes[4], 1);
  EXPECT_EQ(bytes[8], 4) << "little endian";
  const SoundPacket read = read_sound_packet(bytes);
  EXPECT_EQ(read.header.flags, kLastFlag);
  EXPECT_EQ(read.header.number, 0x01020304u);
  EXPECT_EQ(read.header.time_us, 40'000);
  EXPECT_EQ(read.samples, (std::vector<float>{-1, 0, 0.5}));
}

TEST(StreamMessages, APacketThatIsNoneIsRefused) {
  const PacketHeader good{.type = PacketType::kSound, .length = 2};
  const auto refused = [](const std::vector<uint8_t>& bytes, const std::string& wanted) {
    test::expect_error(ErrorKind::kUsage, wanted, [&] { read_sound_packet(bytes); });
  };
  read_sound_packet(packet_bytes(good, {1, 2}));
  refused({}, "0 bytes, legal: a header of 24");
  auto magic = packet_bytes(good, {1, 2});
  magic[0] = 'w';
  refused(magic, "\"WEFT\"");
  auto media = good;
  media.type = PacketType::kMedia;
  refused(packet_bytes(media, {1, 2}), "is 3, legal: 1");
  auto flags = good;
  flags.flags = kKeyFlag;
  refused(packet_bytes(flags, {1, 2}), "are 1, legal: 0, or 4");
  auto time = good;
  time.time_us = -1;
  refused(packet_bytes(time, {1, 2}), "is -1, legal: 0");
  refused(packet_bytes(good, {1}), "2 samples and has 2 bytes");
  refused(packet_bytes(good, {1, 2, 3}), "2 samples and has 6 bytes");
  auto length = good;
  length.length = 48001;
  refused(packet_bytes(length, std::vector<int16_t>(48001)), "0 ... 48000 samples");
}

TEST(StreamMessages, TheServersMessagesAreObjectsWithTheirType) {
  const auto ready = nlohmann::json::parse(server_message("session_ready", {{"session_id", 3}}));
  EXPECT_EQ(ready, (nlohmann::json{{"type", "session_ready"}, {"session_id", 3}}));
  const auto error = nlohmann::json::parse(
      to_message({.code = "bad_message", .message = "no \xff", .retryable = false, .fatal = true}));
  EXPECT_EQ(error["code"], "bad_message");
  EXPECT_EQ(error["fatal"], true);
}

}  // namespace
}  // namespace weft
