// A rendezvous of processes of one machine through files of one folder: slow, and without a launcher.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/comm/rendezvous.h"

namespace ananke {

class FolderRendezvous final : public Rendezvous {
 public:
  // The folder exists, is empty at first and outlives all ranks.
  FolderRendezvous(std::filesystem::path folder, int rank, int size, std::chrono::milliseconds deadline)
      : folder_(std::move(folder)), rank_(rank), size_(size), deadline_(deadline) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::string> exchange(const std::string& key, std::span<const int> members, std::string blob) override;

 private:
  std::filesystem::path file(const std::string& key, int rank) const;

  const std::filesystem::path folder_;
  const int rank_, size_;
  const std::chrono::milliseconds deadline_;
};

}  // namespace ananke
