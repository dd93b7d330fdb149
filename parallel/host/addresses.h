#pragma once
// The addresses of this host at which other hosts may reach it, of IPv4 and IPv6.
#include <netinet/in.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// An IPv4 address, or an IPv6 address without a scope id.
struct IpAddress {
  sa_family_t family = AF_INET;
  in6_addr bytes{};  // an IPv4 address has the first four

  int bits() const { return family == AF_INET ? 32 : 128; }
  bool operator==(const IpAddress& other) const;
};
std::optional<IpAddress> parse_address(const std::string& text);
std::string to_string(const IpAddress& address);

struct HostAddress {
  std::string interface;
  IpAddress address;
  bool up = true;       // set up by the administrator
  bool running = true;  // its cable or peer is there
  bool loopback = false;
};

// The addresses of this host in the kernel's order, except for IPv6 addresses of a single link,
// which need a scope id. Error(kComm).
std::vector<HostAddress> host_addresses();

// The addresses that other hosts are likely to reach, likely ones first: not those of interfaces
// that are down, and the loopback's only where there is no other. Interfaces without a cable come
// later, then those between containers of one host (docker0, veth...), then addresses of a single
// link (169.254.0.0/16); else IPv4 comes before IPv6.
std::vector<HostAddress> reachable_addresses(std::vector<HostAddress> all);

// The addresses that a list of interfaces' names, CIDRs and addresses ("eth0,10.0.0.0/8,fd00::2")
// names, in its order.
std::vector<HostAddress> named_addresses(std::span<const HostAddress> all,
                                         const std::string& names);
// Error(kUsage) where an item of the list names none of the addresses; `label` is the flag's.
void check_interfaces(const std::string& label, const std::string& names,
                      std::span<const HostAddress> all);

}  // namespace weft
