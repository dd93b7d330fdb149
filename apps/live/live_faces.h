#pragma once
// LiveFaces: the clients of a live server and their faces. It speaks the messages of
// apps/serve/stream_messages.h at one route, gives every client a face, keeps a face whose client
// is gone for a while, and ends what is left when the server drains.
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "apps/live/live_face.h"
#include "apps/serve/http/http_server.h"
#include "apps/serve/server_routes.h"

namespace weft {

struct LiveSettings {
  std::string model;               // its name
  std::string caption, mood;       // of clients that state none
  std::vector<std::string> moods;  // that the model has
  int most_faces = 8;
  // A client that is gone may come back so long.
  std::chrono::milliseconds resume{30'000};
  // A connection must begin with session_init or session_resume before this time.
  std::chrono::milliseconds first_message{10'000};
};

// The stage and the state outlive it; the server is stopped before.
class LiveFaces {
 public:
  LiveFaces(FaceStage& stage, LiveSettings settings, ServerState& state);
  ~LiveFaces();

  // Answers a new connection's messages. Called on the server's thread.
  WebSocketHandler open(std::shared_ptr<WebSocket> socket);
  // From now on connections end when their faces have spoken what they have, and new ones are
  // refused.
  void drain();
  int faces() const;

 private:
  struct Entry;   // a face with its token
  struct Client;  // a connection
  using ClientPtr = std::shared_ptr<Client>;
  using EntryPtr = std::shared_ptr<Entry>;

  EntryPtr entry_of(const ClientPtr& client) const;
  void take_text(const ClientPtr& client, std::string_view message);
  void take_sound(const ClientPtr& client, std::string_view message);
  void closed(const ClientPtr& client, uint16_t code);
  void act(const ClientPtr& client, const ClientMessage& message);
  void steer(const ClientPtr& client, LiveFace& face, const ClientMessage& message);
  void begin(const ClientPtr& client, const SessionInit& init);
  void resume(const ClientPtr& client, const SessionResume& resume);
  FaceRequest checked(const SessionInit& init) const;
  std::string greeting(const Entry& entry, bool resumed) const;
  void refuse(const ClientPtr& client, const StreamError& error, uint16_t code = 1008);

  // The thread that looks after the clients. All but the first need the lock.
  void look_after();
  void look_after(const Client& client);
  void tell_position(Entry& entry);
  void take_ended(std::vector<EntryPtr>& ended);

  FaceStage& stage_;
  const LiveSettings settings_;
  ServerState& state_;
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::map<std::string, EntryPtr> entries_;  // by token
  std::vector<ClientPtr> clients_;
  bool draining_ = false, stops_ = false;
  std::thread looks_after_;
};

}  // namespace weft
