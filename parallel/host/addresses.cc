#include "parallel/host/addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <tuple>
#include <utility>

#include "kernels/check.h"

namespace weft {

namespace {

constexpr IpAddress kLinkLocal{AF_INET, {{{169, 254}}}};

// Interfaces that connect containers or virtual machines of one host. Inside of a container, whose
// only one may be such, its name is another one.
constexpr std::string_view kLocalPrefixes[] = {"docker", "br-", "virbr",  "veth", "cni",
                                               "lxc",    "lxd", "podman", "cali", "flannel"};

// A range of addresses: those that share the first `bits`.
struct Cidr {
  IpAddress address;
  int bits = 0;

  bool has(const IpAddress& other) const {
    if (other.family != address.family) return false;
    const uint8_t *a = address.bytes.s6_addr, *b = other.bytes.s6_addr;
    const int whole = bits / 8, rest = bits % 8;
    return std::equal(a, a + whole, b) && (rest == 0 || (a[whole] ^ b[whole]) >> (8 - rest) == 0);
  }
};

// An address alone is a range of one.
std::optional<Cidr> parse_cidr(const std::string& text) {
  const size_t slash = text.find('/');
  const std::optional<IpAddress> address = parse_address(text.substr(0, slash));
  if (!address) return {};
  Cidr range{*address, address->bits()};
  if (slash == std::string::npos) return range;
  const char *begin = text.data() + slash + 1, *end = text.data() + text.size();
  const auto [at, error] = std::from_chars(begin, end, range.bits);
  if (error != std::errc() || at != end || range.bits < 0 || range.bits > address->bits())
    return {};
  return range;
}

std::vector<std::string> items_of(const std::string& names) {
  std::vector<std::string> items;
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    if (end > begin) items.push_back(names.substr(begin, end - begin));
    begin = end + 1;
  }
  return items;
}

bool names_address(const std::string& item, const HostAddress& one) {
  if (one.interface == item) return true;
  const std::optional<Cidr> range = parse_cidr(item);
  return range && range->has(one.address);
}

}  // namespace

bool IpAddress::operator==(const IpAddress& other) const {
  return family == other.family && IN6_ARE_ADDR_EQUAL(&bytes, &other.bytes);
}

std::optional<IpAddress> parse_address(const std::string& text) {
  for (const int family : {AF_INET, AF_INET6}) {
    IpAddress out{.family = static_cast<sa_family_t>(family)};
    if (inet_pton(family, text.c_str(), &out.bytes) == 1) return out;
  }
  return {};
}

std::string to_string(const IpAddress& address) {
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(address.family, &address.bytes, text, sizeof text);
  return text;
}

std::vector<HostAddress> host_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0)
    throw Error(ErrorKind::kComm, std::string("getifaddrs: ") + std::strerror(errno));
  std::vector<HostAddress> all;
  for (const ifaddrs* at = list; at; at = at->ifa_next) {
    const int family = at->ifa_addr ? at->ifa_addr->sa_family : AF_UNSPEC;
    if (family != AF_INET && family != AF_INET6) continue;
    HostAddress one{.interface = at->ifa_name,
                    .address = {.family = static_cast<sa_family_t>(family)},
                    .up = (at->ifa_flags & IFF_UP) != 0,
                    .running = (at->ifa_flags & IFF_RUNNING) != 0,
                    .loopback = (at->ifa_flags & IFF_LOOPBACK) != 0};
    if (family == AF_INET)
      std::memcpy(&one.address.bytes, &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr,
                  sizeof(in_addr));
    else
      one.address.bytes = reinterpret_cast<const sockaddr_in6*>(at->ifa_addr)->sin6_addr;
    if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&one.address.bytes)) continue;
    all.push_back(std::move(one));
  }
  freeifaddrs(list);
  return all;
}

std::vector<HostAddress> reachable_addresses(std::vector<HostAddress> all) {
  std::erase_if(all, [](const HostAddress& one) { return !one.up; });
  if (!std::ranges::all_of(all, &HostAddress::loopback))
    std::erase_if(all, [](const HostAddress& one) { return one.loopback; });
  std::ranges::stable_sort(all, {}, [](const HostAddress& one) {
    const bool local = std::ranges::any_of(
        kLocalPrefixes, [&](std::string_view prefix) { return one.interface.starts_with(prefix); });
    return std::tuple(Cidr{kLinkLocal, 16}.has(one.address), local, !one.running,
                      one.address.family == AF_INET6);
  });
  return all;
}

std::vector<HostAddress> named_addresses(std::span<const HostAddress> all,
                                         const std::string& names) {
  std::vector<HostAddress> named;
  for (const std::string& item : items_of(names))
    for (const HostAddress& one : all)
      if (names_address(item, one) &&
          std::ranges::find(named, one.address, &HostAddress::address) == named.end())
        named.push_back(one);
  return named;
}

void check_interfaces(const std::string& label, const std::string& names,
                      std::span<const HostAddress> all) {
  const std::vector<std::string> items = items_of(names);
  const bool each = std::ranges::all_of(items, [&](const std::string& item) {
    return std::ranges::any_of(all, [&](const auto& one) { return names_address(item, one); });
  });
  if (each && !items.empty()) return;
  std::vector<std::pair<std::string, std::string>> here;  // interfaces and their addresses
  for (const HostAddress& one : all) {
    const auto known = std::ranges::find(here, one.interface, &decltype(here)::value_type::first);
    if (known == here.end())
      here.emplace_back(one.interface, to_string(one.address));
    else
      known->second += " " + to_string(one.address);
  }
  std::string text;
  for (const auto& [interface, addresses] : here)
    text += (text.empty() ? "" : ", ") + interface + " (" + addresses + ")";
  throw Error(ErrorKind::kUsage,
              label + " is '" + names +
                  "', legal: an interface of this host or a CIDR that has an address of it; here "
                  "are " +
                  (text.empty() ? "none" : text));
}

}  // namespace weft
