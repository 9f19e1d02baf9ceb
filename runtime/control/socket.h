// The few socket calls that the control channel needs, with errors that name the address.
#pragma once

#include <chrono>
#include <string>

#include "runtime/base/descriptor.h"

namespace ananke {

// A non-blocking listening socket on `host` (name or address; "0.0.0.0": all) and a port chosen by the system.
// Throws Error(resource).
Descriptor listen_on(const std::string& host);
int port_of(const Descriptor& socket);
// A connected non-blocking socket to "host:port". Tries again while the other end is busy, until `deadline`; an address
// at which nobody listens is given up sooner. Throws Error(config) for text that is no address, Error(stalled) else.
Descriptor connect_to(const std::string& address, std::chrono::milliseconds deadline);

// A secret for one job: 64 hexadecimal digits of the kernel's random numbers.
std::string make_secret();
// Takes the same time whatever differs.
bool same_secret(const std::string& a, const std::string& b) noexcept;

}  // namespace ananke
