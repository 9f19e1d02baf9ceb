#include "runtime/control/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/process.h"
#include "runtime/base/units.h"

namespace ananke {
namespace {

using Clock = std::chrono::steady_clock;
using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

AddressList resolve(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (status != 0) {
    fail(ErrorKind::resource, "cannot resolve '{}' for the control channel: {}; check the name or network_interface",
         host, gai_strerror(status));
  }
  return {found, freeaddrinfo};
}

void set_option(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof value); }

// 0 when connected, else errno.
int try_connect(const addrinfo& address, Clock::time_point until, Descriptor& socket) {
  socket = Descriptor(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return errno;
  if (connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd ready{socket.get(), POLLOUT, 0};
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
  if (poll(&ready, 1, static_cast<int>(std::max<long>(left, 0))) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

Descriptor listen_on(const std::string& host) {
  const AddressList addresses = resolve(host, "0", AI_PASSIVE);
  Descriptor socket(::socket(addresses->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  // The backlog holds every worker of a large job at once; the kernel lowers it to net.core.somaxconn.
  if (!socket || bind(socket.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      listen(socket.get(), 16384) != 0) {
    fail(ErrorKind::resource, "cannot listen on {} for the workers: {}", host, std::strerror(errno));
  }
  return socket;
}

int port_of(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

Descriptor connect_to(const std::string& address, std::chrono::milliseconds deadline) {
  const auto colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
    fail(ErrorKind::config, "'{}' is no address of a launcher; expected host:port", address);
  }
  const AddressList addresses = resolve(address.substr(0, colon), address.substr(colon + 1), AI_NUMERICSERV);
  const auto begin = Clock::now();
  // Nobody listening means that the launcher is gone: it listens before it starts anyone.
  const auto give_up_refused = begin + std::min<std::chrono::milliseconds>(deadline, std::chrono::seconds(3));
  for (int attempt = 0;; ++attempt) {
    int error = 0;
    for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
      Descriptor socket;
      error = try_connect(*one, begin + deadline, socket);
      if (error != 0) continue;
      set_option(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
      // Heartbeats that a launcher's dead node does not acknowledge end the connection.
      set_option(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, 60'000);
      return socket;
    }
    const auto now = Clock::now();
    if (now >= begin + deadline || (error == ECONNREFUSED && now >= give_up_refused)) {
      fail(ErrorKind::stalled,
           "cannot reach the launcher at {} within {}: {}; is it still running, and is the address "
           "reachable from {}?",
           address, format_duration(std::chrono::duration<double>(now - begin).count()), std::strerror(error),
           host_name());
    }
    // Spread those who were turned away together.
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + (getpid() * 7 + attempt * 13) % 80));
  }
}

std::string make_secret() {
  std::array<unsigned char, 32> bytes{};
  for (std::size_t have = 0; have < bytes.size();) {
    const ssize_t got = getrandom(bytes.data() + have, bytes.size() - have, 0);
    if (got < 0 && errno != EINTR) fail(ErrorKind::resource, "getrandom: {}", std::strerror(errno));
    if (got > 0) have += static_cast<std::size_t>(got);
  }
  std::string text;
  for (unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

bool same_secret(const std::string& a, const std::string& b) noexcept {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

}  // namespace ananke
