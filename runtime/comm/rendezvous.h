// How ranks find each other before they have a communicator: an exchange of small blobs, by key.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ananke {

// Implementations: control/ (between processes, through the launcher), comm/local_rendezvous (ranks as threads).
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Every rank of `members` (ascending world ranks, own rank included; empty means all) calls this with the same key
  // and gets all blobs in the members' order. Blocks up to the exchange deadline, then throws Error(stalled) naming
  // the ranks that did not come. A key serves once: number them. May be called from any thread.
  virtual std::vector<std::string> exchange(const std::string& key, std::span<const int> members, std::string blob) = 0;
  // The same where the members come from long work of unequal length (files written or read): blocks up to the deadline
  // of a step, where the implementation knows one.
  virtual std::vector<std::string> exchange_after_work(const std::string& key, std::span<const int> members,
                                                       std::string blob) {
    return exchange(key, members, std::move(blob));
  }
};

}  // namespace ananke
