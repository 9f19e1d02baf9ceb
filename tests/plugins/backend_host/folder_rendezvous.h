// A rendezvous of processes through files of one folder: slow, and without a launcher.
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/comm/rendezvous.h"

namespace ananke::testing {

class FolderRendezvous final : public Rendezvous {
 public:
  FolderRendezvous(std::filesystem::path folder, int rank, int size)
      : folder_(std::move(folder)), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::string> exchange(const std::string& key, std::span<const int> members, std::string blob) override {
    const auto mine = file(key, rank_), draft = std::filesystem::path(mine.string() + ".draft");
    std::ofstream(draft, std::ios::binary) << blob;
    std::filesystem::rename(draft, mine);  // so that nobody sees half of it
    std::vector<std::string> blobs;
    const auto due = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    for (int member : members) {
      while (!std::filesystem::exists(file(key, member))) {
        if (std::chrono::steady_clock::now() > due) fail(ErrorKind::stalled, "exchange {}: no rank {}", key, member);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      std::ifstream in(file(key, member), std::ios::binary);
      blobs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    }
    return blobs;
  }

 private:
  std::filesystem::path file(std::string key, int rank) const {
    for (char& c : key) {
      if (c == '/' || c == ' ') c = '_';
    }
    return folder_ / (key + "." + std::to_string(rank));
  }
  const std::filesystem::path folder_;
  const int rank_, size_;
};

}  // namespace ananke::testing
