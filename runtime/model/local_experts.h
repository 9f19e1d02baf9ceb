// Built-in of the role "experts": every rank holds all experts of a layer while it computes (their parameters are
// gathered), so tokens stay where they are and are only grouped by expert.
#pragma once

#include "runtime/roles/experts.h"

namespace ananke {

class LocalExperts : public Experts {
 public:
  explicit LocalExperts(const OperatorSet& operators) : operators_(operators) {}
  std::int64_t capacity(const ExpertSizes& s) const override { return s.tokens * s.k; }
  std::int64_t local_experts(const ExpertSizes& s) const override { return s.experts; }
  std::size_t saved(const ExpertSizes& s) const override;
  std::size_t workspace(const ExpertSizes& s) const override;
  ExpertRows dispatch(Stream& stream, const TensorView& x, const Routing& routing, const TensorView& rows, Region saved,
                      Region workspace) override;
  TensorView offsets(Region saved, const ExpertSizes& s) const override;
  void combine(Stream& stream, const TensorView& rows, const Routing& routing, const TensorView& y, Region saved,
               Region workspace) override;
  void combine_backward(Stream& stream, const TensorView& dy, const TensorView& rows, const Routing& routing,
                        const TensorView& drows, const TensorView& dweights, Region saved, Region workspace) override;
  void dispatch_backward(Stream& stream, const TensorView& drows, const Routing& routing, const TensorView& dx,
                         Region saved, Region workspace) override;

 private:
  const OperatorSet& operators_;
};

}  // namespace ananke
