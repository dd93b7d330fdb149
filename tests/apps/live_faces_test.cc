// Clients of a live server on a real engine, over sockets of memory: each case takes as long as
// what it plays.
#include "apps/live/live_faces.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "engine/parts/components.h"
#include "tests/apps/live_testing.h"
#include "tests/support/voice.h"

namespace weft::test {
namespace {

// A small avatar, and a server's faces on it.
class Stage {
 public:
  explicit Stage(LiveSettings settings = {})
      : engine_(std::make_shared<const OpenModel>("models/pocket_avatar"), engine_settings()),
        runner_(engine_),
        stage_{.runner = runner_,
               .session = session(),
               .movie = movie(),
               .voice = "en",
               .loops = [this](const std::string& caption) { return loops(caption); },
               .caption = [](const auto& caption, const auto& mood) -> std::string {
                 if (mood && *mood == "angry")
                   throw Error(ErrorKind::kUsage, "mood is 'angry'; legal for this model: calm");
                 return caption.value_or("a calm face");
               }} {
    state_.readiness.set_ready();
    settings.model = "small";
    settings.moods = {"calm"};
    faces_.emplace(stage_, settings, state_);
  }

  struct Client {
    std::shared_ptr<KeptSocket> socket = std::make_shared<KeptSocket>();
    WebSocketHandler handler{};
    void say(const nlohmann::json& message) const { handler.text(message.dump()); }
    // Speaks for so many packets of 100 ms, as one turn.
    void speak(int packets, uint32_t seed, int64_t first_us = 0) const {
      const std::vector<float> sound = pocket::made_up_voice(packets * 1600, seed);
      for (int k = 0; k < packets; ++k)
        handler.binary(sound_packet({sound.begin() + k * 1600, sound.begin() + (k + 1) * 1600},
                                    uint32_t(k), first_us + k * 100'000,
                                    k + 1 == packets ? kLastFlag : 0));
    }
  };
  Client connect() {
    Client client;
    client.handler = faces_->open(client.socket);
    return client;
  }
  Client begin(nlohmann::json init = nlohmann::json::object()) {
    Client client = connect();
    init["type"] = "session_init";
    client.say(init);
    EXPECT_TRUE(client.socket->wait_text("session_ready"));
    return client;
  }
  LiveFaces& faces() { return *faces_; }
  ServerState& state() { return state_; }

 private:
  static StreamSettings engine_settings() {
    return {.width = 32,
            .height = 32,
            .steps = 1,
            .segment_frames = 3,
            .window_frames = 6,
            .threads = 1};
  }
  SessionConfig session() {
    SessionConfig config;
    config.first_pictures = 1;
    config.in_engine = engine_.plan().under_way();
    config.revoke = std::chrono::seconds(1);
    return config;
  }
  static MovieSettings movie() {
    MovieSettings movie{
        .video = {}, .sample_rate = SoundBands::kRate, .fragment = 4, .key_every = 3};
    movie.video.width = movie.video.height = 32;
    movie.video.fps_num = 25;
    return movie;
  }
  std::shared_ptr<const SessionLoops> loops(const std::string& caption) {
    const std::lock_guard lock(mutex_);
    auto& loops = loops_[caption];
    if (!loops) loops = draw_loops(runner_, session(), caption, 24);
    return loops;
  }

  StreamEngine engine_;
  TurnRunner runner_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const SessionLoops>> loops_;
  FaceStage stage_;
  ServerState state_{.log = ServerLog([](const std::string&) {})};
  std::optional<LiveFaces> faces_;
};

// Expects packets whose times follow each other from `first_us` on. Returns the end of the last.
int64_t expect_gapless(const std::vector<KeptSocket::Media>& media, int64_t first_us) {
  int64_t expected = first_us;
  for (const KeptSocket::Media& packet : media) {
    EXPECT_EQ(packet.header.time_us, expected);
    EXPECT_FALSE(packet.payload.empty());
    expected += packet.header.length;
  }
  return expected;
}

TEST(LiveFaces, AFaceSpeaksAndIsInterrupted) {
  Stage stage;
  const Stage::Client client = stage.begin();
  const KeptSocket& socket = *client.socket;
  client.speak(40, 1);
  ASSERT_TRUE(client.socket->wait_state("speaking"));
  EXPECT_EQ(socket.texts()[0].at("type"), "session_ready");
  EXPECT_EQ(socket.texts()[0].at("resumed"), false);
  const nlohmann::json init = *client.socket->wait_text("media_init");
  EXPECT_EQ(init.at("mime").get<std::string>().substr(0, 22), "video/mp4; codecs=\"avc");
  EXPECT_EQ(init.at("width"), 32);
  ASSERT_EQ(socket.headers().size(), 1u);
  EXPECT_EQ(socket.headers()[0].payload.substr(4, 4), "ftyp");
  client.say({{"type", "flush"}});
  const nlohmann::json flushed = *client.socket->wait_text("flushed");
  const size_t before = socket.texts("stats").size();
  // Four seconds were to be spoken: what is spoken after the flush is at most 0.6 s and a packet.
  ASSERT_TRUE(client.socket->wait_state("listening", before));
  for (const nlohmann::json& stats : socket.texts("stats")) {
    if (stats.at("state") != "speaking") continue;
    EXPECT_LE(stats.at("time_us").get<int64_t>(),
              flushed.at("time_us").get<int64_t>() + 600'000 + 2 * kPacketUs);
  }
  client.speak(5, 2, 10'000'000);
  ASSERT_TRUE(client.socket->wait_state("speaking", socket.texts("stats").size()));
  expect_gapless(socket.media(), 0);
  client.say({{"type", "close"}});
  EXPECT_EQ(client.socket->wait_close(), 1000);
}

TEST(LiveFaces, StatsFollowThePackets) {
  Stage stage;
  const Stage::Client client = stage.begin();
  client.speak(10, 3);
  ASSERT_TRUE(client.socket->wait_state("speaking"));
  ASSERT_TRUE(client.socket->wait_media(12));
  const std::vector<KeptSocket::Media> media = client.socket->media();
  const std::vector<nlohmann::json> stats = client.socket->texts("stats");
  ASSERT_GE(stats.size() + 1, media.size());
  for (size_t k = 0; k < std::min(stats.size(), media.size()); ++k) {
    EXPECT_EQ(stats[k].at("number"), media[k].header.number);
    EXPECT_EQ(stats[k].at("time_us"), media[k].header.time_us);
    EXPECT_EQ(stats[k].at("duration_us"), kPacketUs);
    EXPECT_LE(stats[k].at("skew_ms").get<double>(), 40);
    EXPECT_LE(stats[k].at("encode_end"), stats[k].at("emit_ts"));
    if (stats[k].at("state") != "speaking") continue;
    EXPECT_LE(stats[k].at("audio_recv_ts"), stats[k].at("infer_start"));
    EXPECT_LT(stats[k].at("infer_start"), stats[k].at("infer_end"));
    EXPECT_LE(stats[k].at("infer_end"), stats[k].at("encode_end"));
    EXPECT_GT(stats[k].at("realtime_factor").get<double>(), 0);
  }
  EXPECT_TRUE(media[0].header.flags & kKeyFlag);
  const auto tells_factor = [&] {
    return stage.state().metrics.text().find("\nweft_realtime_factor ") != std::string::npos;
  };
  for (int look = 0; look < 500 && !tells_factor(); ++look)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(tells_factor());
}

TEST(LiveFaces, EveryContainerCarriesPicturesAndSound) {
  Stage stage;
  for (const auto& [container, mime, magic] :
       {std::tuple{"annexb", "avc1.42C0", std::string("\0\0\0\1", 4)},
        {"jpeg", "image/jpeg", std::string("\xff\xd8\xff")}}) {
    const Stage::Client client = stage.begin({{"container", container}});
    client.speak(10, 6);
    ASSERT_TRUE(client.socket->wait_state("speaking"));
    const nlohmann::json init = *client.socket->wait_text("media_init");
    EXPECT_EQ(init.at("container"), container);
    EXPECT_EQ(init.at("mime").get<std::string>().rfind(mime, 0), 0u) << init;
    EXPECT_TRUE(client.socket->headers().empty());
    std::vector<KeptSocket::Media> pictures, heard;
    for (KeptSocket::Media& media : client.socket->media())
      (media.header.type == PacketType::kMedia ? pictures : heard).push_back(std::move(media));
    expect_gapless(pictures, 0);
    expect_gapless(heard, 0);
    EXPECT_TRUE(pictures[0].header.flags & kKeyFlag);
    for (const KeptSocket::Media& picture : pictures)
      EXPECT_EQ(picture.payload.substr(0, magic.size()), magic);
    for (const KeptSocket::Media& sound : heard) {
      EXPECT_EQ(sound.header.length, 40'000u);
      EXPECT_EQ(sound.payload.size(), 640u * 2);
    }
  }
}

TEST(LiveFaces, AClientThatComesBackLosesNothing) {
  Stage stage;
  Stage::Client client = stage.begin();
  const std::string token = client.socket->wait_text("session_ready")->at("resume_token");
  client.speak(60, 4);
  int64_t seen = -1, end = 0;
  for (int round = 0; round < 10; ++round) {
    ASSERT_TRUE(client.socket->wait_media(2));
    client.handler.closed(1006);
    const std::vector<KeptSocket::Media> media = client.socket->media();
    // The last packet was on its way when the connection broke.
    end = expect_gapless({media.begin(), media.end() - 1}, end);
    seen = media[media.size() - 2].header.time_us;
    client = stage.connect();
    client.say({{"type", "session_resume"}, {"token", token}, {"time_us", seen}});
    const auto ready = client.socket->wait_text("session_ready");
    ASSERT_TRUE(ready);
    EXPECT_EQ(ready->at("resumed"), true);
  }
  ASSERT_TRUE(client.socket->wait_media(3));
  expect_gapless(client.socket->media(), end);
  EXPECT_EQ(stage.faces().faces(), 1);
}

TEST(LiveFaces, AnUnknownTokenLeavesRoomForANewSession) {
  Stage stage;
  const Stage::Client client = stage.connect();
  client.say({{"type", "session_resume"}, {"token", "00"}});
  const auto error = client.socket->wait_text("error");
  ASSERT_TRUE(error);
  EXPECT_EQ(error->at("code"), "unknown_session");
  EXPECT_EQ(error->at("fatal"), false);
  client.say({{"type", "session_init"}});
  EXPECT_TRUE(client.socket->wait_text("session_ready"));
}

TEST(LiveFaces, TheSecondConnectionOfATokenTakesItOver) {
  Stage stage;
  const Stage::Client first = stage.begin();
  const std::string token = first.socket->wait_text("session_ready")->at("resume_token");
  ASSERT_TRUE(first.socket->wait_media(1));
  const Stage::Client second = stage.connect();
  second.say({{"type", "session_resume"}, {"token", token}});
  EXPECT_EQ(first.socket->wait_close(), 1000);
  first.handler.closed(1000);
  ASSERT_TRUE(second.socket->wait_media(3));
  EXPECT_EQ(second.socket->headers().size(), 1u);
}

TEST(LiveFaces, FacesThatTakeTurnsAllSpeak) {
  Stage stage;
  std::vector<Stage::Client> clients;
  for (int k = 0; k < 8; ++k) clients.push_back(stage.begin());
  for (int k = 0; k < 8; ++k) clients[size_t(k)].speak(8, uint32_t(k));
  for (const Stage::Client& client : clients) EXPECT_TRUE(client.socket->wait_state("speaking"));
  for (const Stage::Client& client : clients) {
    expect_gapless(client.socket->media(), 0);
    for (const nlohmann::json& stats : client.socket->texts("stats"))
      EXPECT_EQ(stats.at("dropped_packets"), 0);
  }
  EXPECT_EQ(stage.faces().faces(), 8);
}

TEST(LiveFaces, ASlowClientCostsTheOthersNothing) {
  Stage stage;
  const Stage::Client slow = stage.begin(), fast = stage.begin();
  slow.socket->stick(true);
  ASSERT_TRUE(fast.socket->wait_media(25));
  const size_t taken = slow.socket->media().size();
  EXPECT_LE(taken, 13u);  // two seconds
  slow.socket->stick(false);
  ASSERT_TRUE(slow.socket->wait_text("skipped"));
  ASSERT_TRUE(slow.socket->wait_media(taken + 2));
  EXPECT_TRUE(slow.socket->media()[taken].header.flags & kKeyFlag);
  expect_gapless(fast.socket->media(), 0);
}

TEST(LiveFaces, APauseHoldsTheMedia) {
  Stage stage;
  const Stage::Client client = stage.begin();
  ASSERT_TRUE(client.socket->wait_media(2));
  client.say({{"type", "pause"}});
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const size_t held = client.socket->media().size();
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  EXPECT_EQ(client.socket->media().size(), held);
  client.say({{"type", "resume"}});
  ASSERT_TRUE(client.socket->wait_media(held + 5));
  expect_gapless(client.socket->media(), 0);
}

// The code and the close of what a client is told for its first messages.
void expect_closed(const std::string& code, int close, const std::string& part,
                   const std::function<void(const Stage::Client&)>& act,
                   LiveSettings settings = {}) {
  Stage stage(settings);
  const Stage::Client client = stage.connect();
  act(client);
  const auto error = client.socket->wait_text("error");
  ASSERT_TRUE(error) << part;
  EXPECT_EQ(error->at("code"), code);
  EXPECT_NE(error->at("message").get<std::string>().find(part), std::string::npos) << *error;
  EXPECT_EQ(client.socket->wait_close(), close) << part;
}

TEST(LiveFaces, WrongMessagesAreRefusedByName) {
  const auto text = [](const nlohmann::json& message) {
    return [message](const Stage::Client& client) { client.say(message); };
  };
  expect_closed("bad_message", 1008, "session_init, session_resume", text({{"type", "flush"}}));
  expect_closed("bad_message", 1008, "did you mean", text({{"type", "session_int"}}));
  expect_closed("bad_message", 1008, "begins with sound",
                [](const Stage::Client& client) { client.speak(1, 0); });
  expect_closed("bad_request", 1008, "legal for this server: \"32x32\"",
                text({{"type", "session_init"}, {"size", "64x64"}}));
  expect_closed("bad_request", 1008, "legal for this server: \"small\"",
                text({{"type", "session_init"}, {"model", "large"}}));
  expect_closed("bad_request", 1008, "mood is 'angry'",
                text({{"type", "session_init"}, {"mood", "angry"}}));
  expect_closed("bad_message", 1008, "the session has begun", [](const Stage::Client& client) {
    client.say({{"type", "session_init"}});
    client.say({{"type", "session_init"}});
  });
  expect_closed("overloaded", 1013, "All 0 faces", text({{"type", "session_init"}}),
                LiveSettings{.model = "", .caption = "", .mood = "", .moods = {}, .most_faces = 0});
}

TEST(LiveFaces, ASilentConnectionIsClosed) {
  LiveSettings settings;
  settings.first_message = std::chrono::milliseconds(300);
  Stage stage(settings);
  const Stage::Client client = stage.connect();
  EXPECT_EQ(client.socket->wait_close(), 1008);
}

TEST(LiveFaces, AFaceIsGoneWhenItsClientDoesNotComeBack) {
  LiveSettings settings;
  settings.resume = std::chrono::milliseconds(300);
  Stage stage(settings);
  const Stage::Client client = stage.begin();
  const std::string token = client.socket->wait_text("session_ready")->at("resume_token");
  client.handler.closed(1006);
  while (stage.faces().faces() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const Stage::Client back = stage.connect();
  back.say({{"type", "session_resume"}, {"token", token}});
  EXPECT_EQ(back.socket->wait_text("error")->at("code"), "unknown_session");
}

TEST(LiveFaces, ADrainLetsAFaceSpeakToItsEnd) {
  Stage stage;
  const Stage::Client speaks = stage.begin(), idle = stage.begin();
  speaks.speak(10, 5);
  ASSERT_TRUE(speaks.socket->wait_state("speaking"));
  stage.faces().drain();
  EXPECT_EQ(idle.socket->wait_close(), 1012);
  EXPECT_TRUE(idle.socket->wait_text("session_closing"));
  EXPECT_EQ(speaks.socket->wait_close(), 1012);
  // The sound of a second became at least as many pictures that speak.
  int64_t spoken = 0;
  for (const nlohmann::json& stats : speaks.socket->texts("stats"))
    if (stats.at("state") == "speaking") spoken += stats.at("duration_us").get<int64_t>();
  EXPECT_GE(spoken, 1'000'000);
  const Stage::Client late = stage.connect();
  late.say({{"type", "session_init"}});
  EXPECT_EQ(late.socket->wait_close(), 1012);
}

}  // namespace
}  // namespace weft::test
