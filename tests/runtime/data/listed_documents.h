// A document source whose documents the test wrote down.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/data/document_source.h"

namespace ananke {

using Documents = std::vector<std::vector<std::int32_t>>;

class ListedDocuments : public DocumentSource {
 public:
  explicit ListedDocuments(Documents documents, std::string identity = "listed")
      : documents_(std::move(documents)), identity_(std::move(identity)) {}
  std::string name() const override { return "listed documents"; }
  std::string identity() const override { return identity_; }
  std::uint64_t documents() const noexcept override { return documents_.size(); }
  std::uint64_t length(std::uint64_t document) const noexcept override { return documents_[document].size(); }
  void read(std::uint64_t document, std::uint64_t begin, std::span<std::int32_t> out) const override {
    std::copy_n(documents_.at(document).begin() + static_cast<std::ptrdiff_t>(begin), out.size(), out.begin());
  }

 private:
  Documents documents_;
  std::string identity_;
};

}  // namespace ananke
