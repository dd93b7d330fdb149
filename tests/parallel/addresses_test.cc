// The first rank's addresses: which are offered and in which order, what --interface names, and
// that a rank finds the right one among dead and wrong ones.
#include "parallel/host/addresses.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "parallel/bootstrap/listener.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

HostAddress address_of(const std::string& interface, const std::string& text) {
  return {.interface = interface,
          .address = parse_address(text).value(),
          .loopback = interface == "lo"};
}

std::string names_of(std::span<const HostAddress> all) {
  std::string text;
  for (const HostAddress& one : all)
    text += (text.empty() ? "" : " ") + one.interface + "=" + to_string(one.address);
  return text;
}

std::vector<HostAddress> machine() {
  std::vector<HostAddress> all{
      address_of("lo", "127.0.0.1"),       address_of("docker0", "172.17.0.1"),
      address_of("eth0", "fd00::2"),       address_of("eth0", "10.0.0.5"),
      address_of("eth1", "169.254.7.7"),   address_of("veth12ab", "172.18.0.1"),
      address_of("ib0", "192.168.5.9"),    address_of("ib0", "2001:db8::9"),
      address_of("eth2", "10.9.0.1"),      address_of("eth3", "10.8.0.1"),
      address_of("br-0123", "172.19.0.1"), address_of("lo", "::1")};
  all[8].running = false;
  all[9].up = false;
  return all;
}

TEST(Addresses, LikelyOnesComeFirst) {
  EXPECT_EQ(names_of(reachable_addresses(machine())),
            "eth0=10.0.0.5 ib0=192.168.5.9 eth0=fd00::2 ib0=2001:db8::9 eth2=10.9.0.1 "
            "docker0=172.17.0.1 veth12ab=172.18.0.1 br-0123=172.19.0.1 eth1=169.254.7.7");
  const std::vector<HostAddress> alone{address_of("lo", "127.0.0.1"), address_of("lo", "::1")};
  EXPECT_EQ(names_of(reachable_addresses(alone)), "lo=127.0.0.1 lo=::1");
  EXPECT_TRUE(reachable_addresses({}).empty());
}

TEST(Addresses, InterfacesAreNamedByNameAddressAndRange) {
  const std::vector<HostAddress> all = machine();
  const auto named = [&](const std::string& names) {
    return names_of(named_addresses(all, names));
  };
  EXPECT_EQ(named("lo"), "lo=127.0.0.1 lo=::1");
  EXPECT_EQ(named("ib0,eth0"), "ib0=192.168.5.9 ib0=2001:db8::9 eth0=fd00::2 eth0=10.0.0.5");
  EXPECT_EQ(named("10.0.0.0/8"), "eth0=10.0.0.5 eth2=10.9.0.1 eth3=10.8.0.1");
  EXPECT_EQ(named("10.8.0.0/15"), "eth2=10.9.0.1 eth3=10.8.0.1");
  EXPECT_EQ(named("10.8.0.0/16,10.0.0.0/8"), "eth3=10.8.0.1 eth0=10.0.0.5 eth2=10.9.0.1");
  EXPECT_EQ(named("192.168.5.9"), "ib0=192.168.5.9");
  EXPECT_EQ(named("192.168.5.8/31"), "ib0=192.168.5.9");
  EXPECT_EQ(named("192.168.5.8/32"), "");
  EXPECT_EQ(named("fd00::/8"), "eth0=fd00::2");
  EXPECT_EQ(named("2001:db8::/125"), "");
  EXPECT_EQ(named("2001:db8::/124"), "ib0=2001:db8::9");
  EXPECT_EQ(named("::/0"), "eth0=fd00::2 ib0=2001:db8::9 lo=::1");
  for (const char* wrong : {"", ",", "eth", "eth00", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/8x",
                            "10.0.0.0/-1", "fd00::/129", "10.0.0/8", "eth0/8"})
    EXPECT_EQ(named(wrong), "") << wrong;
}

TEST(Addresses, AnInterfaceThatIsNotHereIsRefused) {
  const std::vector<HostAddress> all{address_of("lo", "127.0.0.1"), address_of("eth0", "10.0.0.5"),
                                     address_of("lo", "::1")};
  for (const char* right : {"lo", "eth0,lo", "10.0.0.0/8", "::1"})
    EXPECT_EQ(error_of([&] { check_interfaces("--interface", right, all); }), "") << right;
  for (const char* wrong : {"", "eth7", "eth0,eth7", "192.168.0.0/16", "10.0.0.0/99"})
    EXPECT_EQ(thrown_error([&] { check_interfaces("--interface", wrong, all); }, ErrorKind::kUsage),
              "--interface is '" + std::string(wrong) +
                  "', legal: an interface of this host or a CIDR that has an address of it; here "
                  "are lo (127.0.0.1 ::1), eth0 (10.0.0.5)");
}

TEST(Addresses, ThisHostHasItsLoopbackAndNothingThatNeedsAScope) {
  const std::vector<HostAddress> all = host_addresses();
  EXPECT_TRUE(contains(names_of(all), "lo=127.0.0.1"));
  for (const HostAddress& one : all)
    EXPECT_FALSE(to_string(one.address).starts_with("fe80")) << one.interface;
}

// Greets the connections of a listener.
class Greeter {
 public:
  explicit Greeter(const std::string& interfaces) : listener(open_listener(interfaces, 4)) {
    thread_ = std::thread([this] {
      while (!leaving_) {
        if (const int one = accept_connection(listener); one >= 0) accepted_.push_back(one);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    });
  }
  ~Greeter() {
    leaving_ = true;
    thread_.join();
    for (const int one : accepted_) close(one);
    close_listener(listener);
  }
  const Listener listener;

 private:
  std::atomic<bool> leaving_ = false;
  std::vector<int> accepted_;
  std::thread thread_;
};

// A port of the loopback at which connections end in the kernel, and nobody greets them.
class SilentPort {
 public:
  SilentPort() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof at;
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    EXPECT_EQ(listen(socket_, 4), 0);
    EXPECT_EQ(getsockname(socket_, reinterpret_cast<sockaddr*>(&at), &length), 0);
    text = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  }
  ~SilentPort() { leave(); }
  void leave() {
    if (socket_ >= 0) close(socket_);
    socket_ = -1;
  }
  std::string text;

 private:
  int socket_;
};

double seconds_of_connecting(const std::string& text, uint64_t token, const std::string& rest) {
  const auto begun = std::chrono::steady_clock::now();
  const Connection connection = connect_to_listener(text, 20);
  EXPECT_EQ(connection.token, token);
  EXPECT_EQ(connection.rest, rest);
  close(connection.socket);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

TEST(Addresses, EveryOfferedAddressAnswers) {
  const Greeter greeter("lo");
  const std::string& text = greeter.listener.text;
  ASSERT_EQ(greeter.listener.sockets.size(), named_addresses(host_addresses(), "lo").size());
  const size_t blank = text.find(' ');
  for (size_t begin = 0; begin < blank;) {
    const size_t end = std::min(text.find(',', begin), blank);
    seconds_of_connecting(text.substr(begin, end - begin) + text.substr(blank),
                          greeter.listener.token, "");
    begin = end + 1;
  }
  seconds_of_connecting(text + " id  of a job\n", greeter.listener.token, "id  of a job\n");
  const std::string bytes("a\0b\n\0", 5);
  seconds_of_connecting(text + " " + bytes, greeter.listener.token, bytes);
}

TEST(Addresses, DeadAndWrongAddressesAreLeftAfterASecond) {
  const Greeter greeter("127.0.0.1"), stranger("127.0.0.1");
  const auto address = [](const Listener& listener) {
    return listener.text.substr(0, listener.text.find(' '));
  };
  SilentPort silent, closed;
  closed.leave();
  const double seconds = seconds_of_connecting(closed.text + "," + address(stranger.listener) +
                                                   "," + silent.text + "," + greeter.listener.text,
                                               greeter.listener.token, "");
  EXPECT_GE(seconds, 1);
  EXPECT_LT(seconds, 10) << "on a machine whose cores are shared";
}

TEST(Addresses, AnErrorSaysWhatIsWrongWithEachAddress) {
  const Greeter stranger("127.0.0.1");
  const std::string other = stranger.listener.text.substr(0, stranger.listener.text.find(' '));
  SilentPort silent, closed;
  closed.leave();
  EXPECT_EQ(thrown_error([&] { connect_to_listener(closed.text + "," + other + " 1 2", 20); },
                         ErrorKind::kComm),
            "connecting to rank 0 at " + closed.text + ": Connection refused; " + other +
                ": another program answers");
  EXPECT_EQ(thrown_error([&] { connect_to_listener(silent.text + " 1 2", 0.1); }, ErrorKind::kComm),
            "connecting to rank 0 at " + silent.text + ": no answer within a second");
  for (const char* wrong : {"", "1 2", "host:5 1 2", "127.0.0.1 1 2", "127.0.0.1:0 1 2",
                            "[::1:5 1 2", "127.0.0.1:5", "127.0.0.1:5 1", "127.0.0.1:70000 1 2"})
    EXPECT_EQ(thrown_error([&] { connect_to_listener(wrong, 1); }, ErrorKind::kComm),
              "rank 0's text '" + std::string(wrong) + "' names no address");
}

// The first rank may be busy when another connects; what it accepts late counts.
TEST(Addresses, AListenerThatGreetsLateIsTriedAgain) {
  const Listener listener = open_listener("127.0.0.1", 4);
  std::vector<int> accepted;
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1300));
    while (accepted.size() < 2) {
      if (const int one = accept_connection(listener); one >= 0) accepted.push_back(one);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  seconds_of_connecting(listener.text, listener.token, "");
  late.join();
  for (const int one : accepted) close(one);
  close_listener(listener);
}

}  // namespace
}  // namespace weft::test
