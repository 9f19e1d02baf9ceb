// Documents of several sources by weight: the next piece is of the source that is furthest behind its share, weight /
// sum of weights, of the inputs drawn so far. Each source goes through its own epochs.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/document_pieces.h"

namespace ananke {

struct PackingSource {
  std::unique_ptr<DocumentSource> documents;
  double weight = 1;
};

class MixedPieces {
 public:
  // Where one source stands.
  struct Place {
    DocumentPieces::Place at;
    std::uint64_t drawn = 0;  // inputs
  };

  // Throws Error(data) for a source with nothing to predict, Error(config) for a weight that is none, for no source at
  // all, and for sources of different tokenizers.
  MixedPieces(std::vector<PackingSource> sources, std::uint64_t seed, std::uint32_t row_length);
  const Piece& current() const noexcept { return piece_; }
  void advance();
  std::vector<Place> places() const;  // one of each source
  // False: there is no such place, and nothing has changed.
  bool seek(std::span<const Place> places);

  std::span<const PackingSource> sources() const noexcept { return sources_; }
  double share(std::size_t source) const noexcept { return sources_[source].weight / weights_; }

 private:
  void choose();
  std::vector<PackingSource> sources_;
  double weights_ = 0;
  std::vector<DocumentPieces> pieces_;
  std::vector<std::uint64_t> drawn_;
  Piece piece_;
};

}  // namespace ananke
