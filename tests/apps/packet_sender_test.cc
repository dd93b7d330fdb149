// Media on its way to clients that are slow, gone, or come back.
#include "apps/live/packet_sender.h"

#include <gtest/gtest.h>

#include "tests/apps/live_testing.h"

namespace weft::test {
namespace {

MediaPacket packet(int index, size_t bytes = 100) {
  return {.flags = static_cast<uint16_t>(index % 3 == 0 ? kKeyFlag : 0),
          .time_us = index * kPacketUs,
          .duration_us = kPacketUs,
          .payload = std::string(bytes, static_cast<char>('a' + index % 26))};
}

std::vector<int64_t> packet_indices(const KeptSocket& socket) {
  std::vector<int64_t> all;
  for (const KeptSocket::Media& media : socket.media())
    all.push_back(media.header.time_us / kPacketUs);
  return all;
}
std::vector<int64_t> range(int64_t first, int64_t end) {
  std::vector<int64_t> all;
  for (int64_t k = first; k < end; ++k) all.push_back(k);
  return all;
}

TEST(PacketSender, AClientGetsAllInOrder) {
  PacketSender sender;
  const auto socket = std::make_shared<KeptSocket>();
  sender.attach(socket, -1);
  sender.begin(R"({"type":"media_init"})", "header");
  for (int k = 0; k < 100; ++k) sender.push(packet(k));
  EXPECT_EQ(packet_indices(*socket), range(0, 100));
  ASSERT_EQ(socket->headers().size(), 1u);
  EXPECT_EQ(socket->headers()[0].payload, "header");
  EXPECT_EQ(socket->texts("media_init").size(), 1u);
  const std::vector<KeptSocket::Media> media = socket->media();
  for (uint32_t k = 0; k < 100; ++k) {
    EXPECT_EQ(media[k].header.number, k);
    EXPECT_EQ(media[k].header.length, kPacketUs);
    EXPECT_EQ(media[k].payload, packet(int(k)).payload);
  }
}

TEST(PacketSender, WhoComesBackGoesOnBehindTheLastPacketItSaw) {
  PacketSender sender;
  auto socket = std::make_shared<KeptSocket>();
  sender.attach(socket, -1);
  sender.begin(R"({"type":"media_init"})", "header");
  for (int k = 0; k < 10; ++k) sender.push(packet(k));
  sender.detach();
  for (int k = 10; k < 20; ++k) sender.push(packet(k));
  EXPECT_EQ(packet_indices(*socket), range(0, 10));
  const auto back = std::make_shared<KeptSocket>();
  EXPECT_EQ(sender.attach(back, 7 * kPacketUs), 8 * kPacketUs);
  sender.push(packet(20));
  EXPECT_EQ(packet_indices(*back), range(8, 21));
  EXPECT_TRUE(back->headers().empty());  // its player has it
}

TEST(PacketSender, WhoHasSeenNothingBeginsWithTheHeaderAndAKeyPacket) {
  PacketSender sender;
  sender.begin(R"({"type":"media_init"})", "header");
  for (int k = 0; k < 20; ++k) sender.push(packet(k));
  for (const int64_t seen : {int64_t{-1}, int64_t{12345}}) {
    const auto socket = std::make_shared<KeptSocket>();
    EXPECT_EQ(sender.attach(socket, seen), 18 * kPacketUs);
    EXPECT_EQ(packet_indices(*socket), range(18, 20));
    EXPECT_EQ(socket->headers().size(), 1u);
    EXPECT_TRUE(socket->media()[0].header.flags & kKeyFlag);
  }
}

TEST(PacketSender, WhatIsTooOldIsNotKept) {
  PacketSender sender;
  sender.begin(R"({"type":"media_init"})", "header");
  for (int k = 0; k < 200; ++k) sender.push(packet(k));  // 32 seconds, of which 10 are kept
  const auto socket = std::make_shared<KeptSocket>();
  EXPECT_EQ(sender.attach(socket, 100 * kPacketUs), 198 * kPacketUs);
  const auto recent = std::make_shared<KeptSocket>();
  EXPECT_EQ(sender.attach(recent, 140 * kPacketUs), 141 * kPacketUs);
  EXPECT_EQ(packet_indices(*recent), range(141, 200));
}

TEST(PacketSender, ASlowClientMissesPacketsUpToAKeyPacket) {
  PacketSender sender;
  const auto socket = std::make_shared<KeptSocket>();
  sender.attach(socket, -1);
  sender.begin(R"({"type":"media_init"})", "");
  socket->stick(true);
  for (int k = 0; k < 40; ++k) sender.push(packet(k));
  // Two seconds are 12.5 packets.
  EXPECT_EQ(packet_indices(*socket), range(0, 12));
  EXPECT_TRUE(socket->texts("skipped").empty());
  socket->stick(false);
  for (int k = 40; k < 50; ++k) sender.push(packet(k));
  std::vector<int64_t> expected = range(0, 12);
  for (const int64_t k : range(42, 50)) expected.push_back(k);
  EXPECT_EQ(packet_indices(*socket), expected);
  const std::vector<nlohmann::json> skipped = socket->texts("skipped");
  ASSERT_EQ(skipped.size(), 1u);
  EXPECT_EQ(skipped[0].at("packets"), 30);
  EXPECT_EQ(skipped[0].at("bytes"), 30 * int64_t(100 + PacketHeader::kBytes));
  EXPECT_EQ(sender.counts().dropped, 30);
  EXPECT_EQ(sender.counts().packets, 50);
}

TEST(PacketSender, LargePacketsFillTheQueueBeforeTwoSeconds) {
  PacketSender sender;
  const auto socket = std::make_shared<KeptSocket>();
  sender.attach(socket, -1);
  socket->stick(true);
  for (int k = 0; k < 10; ++k) sender.push(packet(k, 3 << 20));
  EXPECT_EQ(packet_indices(*socket), range(0, 2));
}

TEST(PacketSender, StatsSayWhatTheSenderKnows) {
  PacketSender sender;
  const auto socket = std::make_shared<KeptSocket>();
  sender.attach(socket, -1);
  socket->stick(true);
  for (int k = 0; k < 3; ++k) {
    Json stats{{"state", "idle"}};
    MediaPacket media = packet(k);
    media.stats = &stats;
    sender.push(media);
  }
  const std::vector<nlohmann::json> stats = socket->texts("stats");
  ASSERT_EQ(stats.size(), 3u);
  for (int k = 0; k < 3; ++k) {
    EXPECT_EQ(stats[size_t(k)].at("number"), k);
    EXPECT_EQ(stats[size_t(k)].at("state"), "idle");
    EXPECT_EQ(stats[size_t(k)].at("queue_ms"), 160 * k);
  }
}

}  // namespace
}  // namespace weft::test
