#include "runtime/comm/folder_rendezvous.h"

#include <fstream>
#include <iterator>
#include <numeric>
#include <thread>

#include "runtime/base/error.h"

namespace ananke {

std::vector<std::string> FolderRendezvous::exchange(const std::string& key, std::span<const int> members,
                                                    std::string blob) {
  const std::filesystem::path mine = file(key, rank_), draft = mine.string() + ".draft";
  std::ofstream out(draft, std::ios::binary);
  out << blob;
  out.close();
  if (!out) fail(ErrorKind::resource, "exchange {}: cannot write {}; is the disk full?", key, draft.string());
  std::filesystem::rename(draft, mine);  // so that nobody sees half of it
  std::vector<int> all(static_cast<std::size_t>(size_));
  std::iota(all.begin(), all.end(), 0);
  if (members.empty()) members = all;
  std::vector<std::string> blobs;
  const auto due = std::chrono::steady_clock::now() + deadline_;
  for (const int member : members) {
    while (!std::filesystem::exists(file(key, member))) {
      if (std::chrono::steady_clock::now() > due) {
        fail(ErrorKind::stalled, "exchange {}: rank {} did not come within {} ms", key, member, deadline_.count());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::ifstream in(file(key, member), std::ios::binary);
    blobs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return blobs;
}

std::filesystem::path FolderRendezvous::file(const std::string& key, int rank) const {
  std::string name;
  for (const char c : key) name += c == '/' || c == ' ' ? '_' : c;
  return folder_ / (name + "." + std::to_string(rank));
}

}  // namespace ananke
