// `ananke run --print-memory`: what a job takes of its devices and hosts, known on any machine.
#pragma once

namespace ananke {

class Site;
struct LoadedJob;  // runtime/config/job.h

// Prints the plan of the rank that needs most, and how it stands to what the site's nodes have, or this machine where
// the site starts workers on it. The exit code. Plugins are loaded, in a process of their own; no device is touched and
// no file changed.
int print_memory(const LoadedJob& loaded, const Site& site);

}  // namespace ananke
