// Built-in of the role "experts": every rank holds all experts of a layer while it computes (their parameters are
// gathered), so tokens stay where they are and are only grouped by expert. One chunk, nothing of its own.
#pragma once

#include "runtime/roles/experts.h"

namespace ananke {

class LocalExperts : public Experts {
 public:
  void use(const OperatorSet& operators) override { operators_ = &operators; }
  // Error(config) when they cannot be counted in 32 bits.
  std::int64_t capacity(const ExpertSizes& s) const override;
  std::size_t chunk_saved(const ExpertSizes& s) const override;
  std::size_t workspace(const ExpertSizes& s) const override;
  void start(const ExpertsStart& start) override;
  void begin(Stream&, const ExpertExchange&) override {}
  void dispatch_begin(Stream&, const ExpertExchange&, const ExpertChunk&) override {}
  void dispatch_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override;
  void combine_begin(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override;
  void combine_end(Stream&, const ExpertExchange&, const ExpertChunk&) override {}
  void combine_backward_begin(Stream&, const ExpertExchange&, const ExpertChunk&) override {}
  void combine_backward_end(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override;
  void dispatch_backward_begin(Stream& compute, const ExpertExchange& a, const ExpertChunk& chunk) override;
  void dispatch_backward_end(Stream&, const ExpertExchange&, const ExpertChunk&) override {}

 private:
  const OperatorSet* operators_ = nullptr;
};

}  // namespace ananke
