// Programs of a test's own, found before any other.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/temporary_folder.h"

namespace ananke {

class FakePrograms : public ::testing::Test {
 protected:
  FakePrograms() {
    if (const char* path = std::getenv("PATH")) before_ = path;
    setenv("PATH", (folder_.path().string() + ":" + before_).c_str(), 1);
  }
  ~FakePrograms() override { setenv("PATH", before_.c_str(), 1); }

  // A program of the shell's. Replaces an earlier one.
  void program(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << "#!/bin/sh\n" << text << "\n";
    std::filesystem::permissions(folder_ / name, std::filesystem::perms::owner_all);
  }
  // A file beside them.
  std::string file(const std::string& name) const { return (folder_ / name).string(); }
  std::string text_of(const std::string& name) const {
    std::ifstream stream(folder_ / name);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

 private:
  TemporaryFolder folder_;
  std::string before_;
};

}  // namespace ananke
