#include "parallel/transport/processes/ucx.h"

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/check.h"
#include "parallel/bootstrap/cpu_share.h"
#include "parallel/bootstrap/meeting.h"
#include "parallel/transport/processes/ucx_api.h"
#include "parallel/transport/processes/ucx_devices.h"

namespace weft {

namespace {

constexpr std::chrono::seconds kCloseTime{1};  // for all connections together

void check_ucx(ucs_status_t status, const std::string& call) {
  if (status != UCS_OK)
    throw Error(ErrorKind::kComm, call + ": " + UcxApi::get().status_string(status));
}

ucp_context_h make_context(size_t peers) {
  const UcxApi& ucx = UcxApi::get();
  ucp_config_t* config = nullptr;  // of the UCX_ variables
  check_ucx(ucx.config_read(nullptr, nullptr, &config), "ucp_config_read");
  ucp_params_t wanted{};
  wanted.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
  wanted.features = UCP_FEATURE_TAG;
  wanted.estimated_num_eps = peers;
  ucp_context_h context = nullptr;
  const ucs_status_t status =
      ucx.init_version(UCP_API_MAJOR, UCP_API_MINOR, &wanted, config, &context);
  ucx.config_release(config);
  check_ucx(status, "ucp_init");
  return context;
}

bool takes_cuda(ucp_context_h context) {
  ucp_context_attr_t given{};
  given.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  check_ucx(UcxApi::get().context_query(context, &given), "ucp_context_query");
  return given.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA);
}

// The messages of one worker. A tag is the sender and the lane: UCX keeps the order of messages of
// one sender with one tag. A connection is made with the first message to a peer. Where one breaks,
// because its peer has died, every later call fails.
class UcxMessages final : public PointToPoint {
 public:
  UcxMessages(int rank, int size) : rank_(rank), peers_(size) {
    for (int peer = 0; peer < size; ++peer) {
      peers_[peer].rank = peer;
      peers_[peer].owner = this;
    }
    context_ = make_context(peers_.size());
    takes_device_memory_ = takes_cuda(context_);
    ucp_worker_params_t threads{};
    threads.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    threads.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    check_ucx(ucx_.worker_create(context_, &threads, &worker_), "ucp_worker_create");
    ucp_worker_attr_t given{};
    given.field_mask = UCP_WORKER_ATTR_FIELD_THREAD_MODE;
    check_ucx(ucx_.worker_query(worker_, &given), "ucp_worker_query");
    if (given.thread_mode == UCS_THREAD_MODE_SINGLE)
      throw Error(ErrorKind::kComm, "this UCX cannot be called from several threads in turn");
  }

  std::string address() const {
    ucp_address_t* address = nullptr;
    size_t bytes = 0;
    check_ucx(ucx_.worker_get_address(worker_, &address, &bytes), "ucp_worker_get_address");
    const std::string text(reinterpret_cast<const char*>(address), bytes);
    ucx_.worker_release_address(worker_, address);
    return text;
  }
  void set_addresses(const std::vector<std::string>& addresses) {
    for (Peer& peer : peers_) peer.address = addresses.at(peer.rank);
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  bool takes_device_memory() const override { return takes_device_memory_; }

  Request send(int peer, Lane lane, const void* data, int64_t bytes, Device device) override {
    return request_of(ucx_.tag_send_nbx(connected(peers_[peer]), data, static_cast<size_t>(bytes),
                                        tag_of(rank_, lane), &memory_of(device)),
                      "ucp_tag_send_nbx");
  }

  Request receive(int peer, Lane lane, void* data, int64_t bytes, Device device) override {
    return request_of(ucx_.tag_recv_nbx(worker_, data, static_cast<size_t>(bytes),
                                        tag_of(peer, lane), ~ucp_tag_t{0}, &memory_of(device)),
                      "ucp_tag_recv_nbx");
  }

  void progress() override {
    while (ucx_.worker_progress(worker_) > 0) continue;
    if (!lost_.empty()) throw Error(ErrorKind::kComm, lost_);
  }

  bool finished(Request& request) override {
    if (!request) return true;
    const ucs_status_t status = ucx_.request_check_status(request);
    if (status == UCS_INPROGRESS) return false;
    ucx_.request_free(request);
    request = nullptr;
    check_ucx(status, lost_.empty() ? "a message of UCX" : lost_);
    return true;
  }

  void cancel(Request& request) override {
    ucx_.request_cancel(worker_, request);
    await(request);
  }

  // All ranks have ended, so a connection is closed without asking its other end.
  void finish() override {
    ucp_request_param_t at_once{};
    at_once.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    at_once.flags = UCP_EP_CLOSE_FLAG_FORCE;
    for (Peer& peer : peers_) {
      if (!peer.endpoint) continue;
      const ucs_status_ptr_t closing = ucx_.ep_close_nbx(peer.endpoint, &at_once);
      Request request = UCS_PTR_IS_PTR(closing) ? closing : nullptr;
      await(request);
    }
    ucx_.worker_destroy(worker_);
    ucx_.cleanup(context_);
  }

 private:
  struct Peer {
    int rank = 0;
    std::string address;
    ucp_ep_h endpoint = nullptr;
    UcxMessages* owner = nullptr;
  };

  static ucp_tag_t tag_of(int sender, Lane lane) {
    return static_cast<ucp_tag_t>(sender) << 8 | static_cast<ucp_tag_t>(lane);
  }

  // The memory's type is given, because UCX would look it up at every message.
  static const ucp_request_param_t& memory_of(Device device) {
    const auto of = [](ucs_memory_type_t type) {
      ucp_request_param_t param{};
      param.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE;
      param.memory_type = type;
      return param;
    };
    static const ucp_request_param_t host = of(UCS_MEMORY_TYPE_HOST),
                                     cuda = of(UCS_MEMORY_TYPE_CUDA);
    return device.kind == Device::Kind::kCuda ? cuda : host;
  }

  static Request request_of(ucs_status_ptr_t posted, const char* call) {
    if (UCS_PTR_IS_ERR(posted)) check_ucx(UCS_PTR_STATUS(posted), call);
    return posted;
  }

  static void on_lost(void* lost, ucp_ep_h, ucs_status_t status) {
    const Peer& peer = *static_cast<const Peer*>(lost);
    std::string& line = peer.owner->lost_;
    if (line.empty())
      line = "UCX's connection to rank " + std::to_string(peer.rank) +
             " broke: " + UcxApi::get().status_string(status);
  }

  ucp_ep_h connected(Peer& peer) {
    if (peer.endpoint) return peer.endpoint;
    ucp_ep_params_t wanted{};
    wanted.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    wanted.address = reinterpret_cast<const ucp_address_t*>(peer.address.data());
    wanted.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    wanted.err_handler = {.cb = on_lost, .arg = &peer};
    check_ucx(ucx_.ep_create(worker_, &wanted, &peer.endpoint),
              "UCX finds no way to rank " + std::to_string(peer.rank) +
                  " (UCX_TLS and UCX_NET_DEVICES limit what it tries)");
    return peer.endpoint;
  }

  void await(Request& request) {
    const auto limit = std::chrono::steady_clock::now() + kCloseTime;
    while (request && ucx_.request_check_status(request) == UCS_INPROGRESS &&
           std::chrono::steady_clock::now() < limit)
      ucx_.worker_progress(worker_);
    if (request) ucx_.request_free(request);
    request = nullptr;
  }

  const UcxApi& ucx_ = UcxApi::get();
  int rank_;
  std::vector<Peer> peers_;  // never resized: endpoints know their places
  ucp_context_h context_ = nullptr;
  bool takes_device_memory_ = false;
  ucp_worker_h worker_ = nullptr;
  std::string lost_;  // says which connection broke
};

// Lets UCX take the devices by which the ranks have met, unless the user chose. All ranks call it.
void choose_devices(Meeting& meeting, int rank) {
  std::vector<MetRank> ranks;
  const std::string own = met_interfaces(meeting.own_addresses(), host_addresses());
  for (const std::string& text : meeting.exchange(host_identity() + "\n" + own)) {
    const size_t line = text.find('\n');
    ranks.push_back({.host = text.substr(0, line), .interfaces = text.substr(line + 1)});
  }
  const std::string devices = ucx_devices(ranks, rank);
  if (!devices.empty()) setenv("UCX_NET_DEVICES", devices.c_str(), 0);
}

}  // namespace

bool ucx_built() { return true; }
std::string ucx_library() { return std::string("UCX ") + UcxApi::get().get_version_string(); }

bool ucx_takes_device_memory() {
  const ucp_context_h context = make_context(1);
  const bool takes = takes_cuda(context);
  UcxApi::get().cleanup(context);
  return takes;
}

ProcessMessages make_ucx_messages(const Launch& launch, const MeetingPoint& point) {
  const auto meeting = std::make_shared<Meeting>(launch.rank, launch.ranks, point);
  const bool one_host = launch.one_host() || is_loopback(point.host);
  if (!one_host) choose_devices(*meeting, launch.rank);
  auto messages = std::make_unique<UcxMessages>(launch.rank, launch.ranks);
  messages->set_addresses(meeting->exchange(messages->address()));
  return {.messages = std::move(messages),
          .share = [meeting](const std::string& text) { return meeting->exchange(text).front(); },
          .interfaces = one_host ? "lo" : ""};
}

}  // namespace weft
