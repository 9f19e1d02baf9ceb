// A source's documents without end, epoch after epoch, each in an order of its own: what packing draws from.
//
// An index may be larger than memory, so the order is made in two levels. Documents lie in blocks of 1,024 neighbours;
// the blocks of an epoch are permuted by the seed without a table, and every 512 of them in a row (a group, 524,288
// documents) are read, and shuffled document by document. A source of no more documents than that is shuffled as a
// whole. In memory: 16 bytes for each document of one group, 8 MiB.
//
// A document of n tokens has n - 1 inputs (roles/batches.h). One of more inputs than a row comes in pieces: whole rows
// from its beginning, then what is left.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/data/document_source.h"

namespace ananke {

// Inputs [begin, begin + count) of a document, never more than a row holds.
struct Piece {
  std::uint64_t document = 0;
  std::uint64_t begin = 0;
  std::uint32_t count = 0;
  std::uint32_t source = 0;  // which of several; set by whoever has several
  bool operator==(const Piece&) const = default;
};

class DocumentPieces {
 public:
  static constexpr std::uint64_t block_documents = 1024;
  static constexpr std::uint64_t group_blocks = 512;

  struct Place {
    std::uint64_t epoch = 0;
    std::uint64_t group = 0;   // of the epoch
    std::uint64_t index = 0;   // in the group's order, documents without inputs left out
    std::uint64_t offset = 0;  // inputs of that document in earlier pieces
    bool operator==(const Place&) const = default;
  };

  // `name` keeps the orders of several sources apart. The source must have something to predict, and outlives this.
  DocumentPieces(const DocumentSource& source, std::uint64_t seed, std::string name, std::uint32_t row_length);
  const Piece& current() const noexcept { return piece_; }
  void advance();
  const Place& place() const noexcept { return place_; }
  // False: there is no such place, and nothing has changed.
  bool seek(const Place& place);

 private:
  struct Entry {
    std::uint64_t document = 0;
    std::uint64_t inputs = 0;
  };
  std::uint64_t groups() const noexcept;
  std::vector<Entry> read_group(std::uint64_t epoch, std::uint64_t group) const;
  void settle();  // on the next piece, from a place that may be a group's or an epoch's end

  const DocumentSource& source_;
  std::uint64_t seed_;
  std::string name_;
  std::uint32_t row_length_;
  Place place_;
  std::vector<Entry> entries_;  // of the group that place_ is in
  Piece piece_;
};

}  // namespace ananke
