// The built-in batches role: whole documents one after another, cut into rows (roles/batches.h says how).
//
// Training: the documents of an epoch in an order shuffled by the seed, another order every epoch; epochs follow each
// other without a break, within a row too. Held out: in the store's order, once; the last row is padded.
// The order is a pure function of (seed, epoch), so a position is three numbers. Every rank walks the lengths of all
// documents, and reads the tokens of its own rows only.
#pragma once

#include <memory>

#include "runtime/base/random.h"
#include "runtime/data/document_source.h"
#include "runtime/roles/batches.h"

namespace ananke {

struct SequentialOptions {
  std::int64_t row_length = 0;
  std::uint64_t seed = 0;
  bool endless = true;         // training: shuffled, epoch after epoch; else in order, once
  std::int64_t most_rows = 0;  // not endless: ends after so many global rows; 0: at the source's end
  int rank = 0;
  int ranks = 1;
};

class SequentialBatches : public Batches {
 public:
  // Throws Error(data) when the source has no document of two tokens or more: there is nothing to predict in it.
  SequentialBatches(std::unique_ptr<DocumentSource> source, const SequentialOptions& options);
  bool next(std::int64_t count, Rows& out) override;
  std::string position() const override;
  void restore(const std::string& position) override;
  // Targets of one pass over the source.
  std::uint64_t targets() const noexcept { return targets_; }
  const DocumentSource& source() const noexcept { return *source_; }

 private:
  struct Place {
    std::uint64_t epoch = 0;
    std::uint64_t index = 0;   // in the epoch's order
    std::uint64_t offset = 0;  // inputs of that document already dealt
    std::uint64_t rows = 0;    // global rows dealt
  };
  // The next document with inputs left, starting new epochs; false at the end.
  bool seek();
  // Walks one row; fills it when `row` is not null. False: nothing is left.
  bool deal(Rows* out);
  std::uint64_t document_at(const RandomKey& order, std::uint64_t index) const noexcept;
  std::uint64_t inputs_of(std::uint64_t document) const;  // tokens but the last
  std::string identity() const;

  std::unique_ptr<DocumentSource> source_;
  SequentialOptions options_;
  std::uint64_t targets_ = 0;
  RandomKey order_;  // of the current epoch
  Place place_;
  std::uint64_t document_ = 0;  // what place_.index stands for
  std::uint64_t inputs_ = 0;    // of that document
  std::vector<std::int32_t> scratch_;
};

std::unique_ptr<Batches> training_batches(const Job& job, int rank, int ranks);

struct HeldOutBatches {
  std::string name;
  std::unique_ptr<SequentialBatches> batches;
};

// The job's held-out sets, in its order.
std::vector<HeldOutBatches> held_out_batches(const Job& job, int rank, int ranks);

}  // namespace ananke
