#include "rounding_backend.pb.h"
#include "runtime/engine/inner_role.h"
#include "runtime/plugin/descriptor.h"
#include "tests/rounding_backend/widened_call.h"

namespace ananke {
namespace {

using testing::WidenedCall;

template <class Operator>
struct Widened : Operator {
  Operator* inner = nullptr;

 protected:
  // body(call, arguments): names the arguments that may be bf16.
  template <class Arguments, class Body, class Run>
  void run(Stream& stream, Arguments a, Body body, Run operate) {
    WidenedCall call(stream);
    body(call, a);
    operate(a);
    call.finish();
  }
};

#define ANANKE_WIDENED(METHOD, ARGUMENTS, ...)                                  \
  void METHOD(Stream& stream, const ARGUMENTS& arguments) override {            \
    run(                                                                        \
        stream, arguments, [](WidenedCall& call, ARGUMENTS& a) { __VA_ARGS__ }, \
        [&](const ARGUMENTS& a) { inner->METHOD(stream, a); });                 \
  }
#define ANANKE_SIZE(METHOD) \
  std::size_t METHOD(const Sizes& s) const override { return inner->METHOD(s); }

struct WidenedEmbedding final : Widened<Embedding> {
  ANANKE_WIDENED(forward, Forward, call.in(a.table); call.out(a.y);)
  ANANKE_WIDENED(backward, Backward, call.in(a.dy);)
};
struct WidenedNorm final : Widened<AddRmsNorm> {
  ANANKE_SIZE(saved)
  ANANKE_SIZE(workspace)
  void forward(Stream& stream, const Forward& arguments) override {
    once(stream, arguments);
    if (!arguments.delta || arguments.h.dtype != DType::bf16) return;
    Forward of_rounded = arguments;  // h is: what follows is of that
    of_rounded.x = arguments.h;
    of_rounded.delta = of_rounded.h = {};
    once(stream, of_rounded);
  }
  ANANKE_WIDENED(backward, Backward, call.in(a.h); call.in(a.dy); call.in(a.dh_in); call.out(a.dh);)

 private:
  void once(Stream& stream, const Forward& arguments) {
    run(
        stream, arguments,
        [](WidenedCall& call, Forward& a) { call.in(a.x), call.in(a.delta), call.out(a.h), call.out(a.y); },
        [&](const Forward& a) { inner->forward(stream, a); });
  }
};
struct WidenedLinear final : Widened<Linear> {
  ANANKE_WIDENED(forward, Forward, call.in(a.x); call.in(a.weight); call.out(a.y);)
  ANANKE_WIDENED(backward, Backward, call.in(a.x); call.in(a.weight); call.in(a.dy); call.out(a.dx);)
};
void widen(WidenedCall& call, Attention::Inputs& in) {
  call.in(in.q);
  call.in(in.k);
  call.in(in.v);
}
struct WidenedAttention final : Widened<Attention> {
  ANANKE_SIZE(saved)
  ANANKE_SIZE(workspace)
  ANANKE_WIDENED(forward, Forward, widen(call, a.in); call.out(a.o);)
  ANANKE_WIDENED(backward, Backward, widen(call, a.in); call.in(a.o); call.in(a.d_o); call.out(a.dq); call.out(a.dk);
                 call.out(a.dv);)
};
struct WidenedRouter final : Widened<Router> {
  ANANKE_SIZE(saved)
  ANANKE_SIZE(workspace)
  ANANKE_WIDENED(forward, Forward, call.in(a.x);)
  ANANKE_WIDENED(backward, Backward, call.in(a.x); call.out(a.dx);)
};
struct WidenedPermute final : Widened<Permute> {
  std::size_t workspace(std::int64_t slots, std::int64_t experts) const override {
    return inner->workspace(slots, experts);
  }
  void forward(Stream& stream, const Forward& arguments, Region workspace) override {
    run(
        stream, arguments, [](WidenedCall& call, Forward& a) { call.in(a.x), call.out(a.rows); },
        [&](const Forward& a) { inner->forward(stream, a, workspace); });
  }
  ANANKE_WIDENED(backward, Backward, call.in(a.drows); call.out(a.dx);)
  ANANKE_WIDENED(combine_forward, CombineForward, call.in(a.rows); call.out(a.y);)
  ANANKE_WIDENED(combine_backward, CombineBackward, call.in(a.dy); call.out(a.d_weighted);)
};
struct WidenedExchange final : Widened<Exchange> {
  std::size_t workspace(std::int64_t experts) const override { return inner->workspace(experts); }
  void plan(Stream& stream, const Plan& a) override { inner->plan(stream, a); }
  ANANKE_WIDENED(pack, Pack, call.in(a.x);)
  ANANKE_WIDENED(collect, Collect, call.out(a.y);)
  ANANKE_WIDENED(expand, Expand, call.out(a.rows);)
  ANANKE_WIDENED(combine, Combine, call.in(a.outputs);)
  ANANKE_WIDENED(combine_backward, CombineBackward, call.out(a.d_weighted);)
  ANANKE_WIDENED(expand_backward, ExpandBackward, call.in(a.d_rows);)
};
void widen(WidenedCall& call, GroupedMlp::Weights& weights, const TensorView& offsets) {
  for (MatrixStack* stack : {&weights.gate, &weights.up, &weights.down}) call.in(*stack, offsets.elements() - 1);
}
struct WidenedMlp final : Widened<GroupedMlp> {
  ANANKE_SIZE(saved)
  ANANKE_SIZE(workspace)
  ANANKE_WIDENED(forward, Forward, call.in(a.x); widen(call, a.weights, a.offsets); call.out(a.y);)
  ANANKE_WIDENED(backward, Backward, call.in(a.x); widen(call, a.weights, a.offsets); call.in(a.dy); call.out(a.dx);)
};
struct WidenedHead final : Widened<HeadLoss> {
  ANANKE_SIZE(workspace)
  ANANKE_WIDENED(forward, Forward, call.in(a.x); call.in(a.weight);)
  ANANKE_WIDENED(forward_backward, ForwardBackward, call.in(a.x); call.in(a.weight); call.out(a.dx);)
};
struct WidenedElementwise final : Widened<Elementwise> {
  void add(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& y) override {
    TensorView left = a, right = b, sum = y;
    WidenedCall call(stream);
    call.in(left);
    call.in(right);
    call.out(sum);
    inner->add(stream, left, right, sum);
    call.finish();
  }
  void square_sum(Stream& stream, const TensorView& x, const TensorView& sum) override {
    TensorView values = x;
    WidenedCall call(stream);
    call.in(values);
    inner->square_sum(stream, values, sum);
    call.finish();
  }
  void add_in_order(Stream& stream, const TensorView& terms, const TensorView& sum) override {
    inner->add_in_order(stream, terms, sum);
  }
  void reciprocal(Stream& stream, const TensorView& x, const TensorView& y) override {
    inner->reciprocal(stream, x, y);
  }
  void clip(Stream& stream, const Clip& a) override { inner->clip(stream, a); }
  // Of bf16 the hash of the f32 numbers: as good to compare.
  void hash(Stream& stream, const TensorView& x, const TensorView& hash) override {
    TensorView values = x;
    WidenedCall call(stream);
    call.in(values);
    inner->hash(stream, values, hash);
    call.finish();
  }
};
struct WidenedAdamW final : Widened<AdamWUpdate> {
  ANANKE_WIDENED(update, Arguments, call.out(a.weight); call.in(a.gradient); call.out(a.exp_avg);
                 call.out(a.exp_avg_sq);)
};
#undef ANANKE_SIZE
#undef ANANKE_WIDENED

class RoundingBackend final : public Backend {
 public:
  RoundingBackend(const RoleContext& context, const plugin::RoundingBackend&)
      : host_(make_inner<Backend>("backend_host", context)) {}
  bool computes_in(DType type) const override { return type == DType::f32 || type == DType::bf16; }
  bool stores_in(DType type) const override { return computes_in(type); }
  bool computes_on_host() const override { return true; }
  std::vector<PlanLine> plan(std::span<const CollectiveUse> largest) const override { return host_->plan(largest); }
  std::vector<PlanLine> in_use() override { return host_->in_use(); }
  Device& device() override { return host_->device(); }
  const OperatorSet& operators() override {
    if (set_.linear) return set_;
    set_ = host_->operators();
    replace(set_.embedding, embedding_);
    replace(set_.add_rms_norm, norm_);
    replace(set_.linear, linear_);
    replace(set_.attention, attention_);
    replace(set_.router, router_);
    replace(set_.permute, permute_);
    replace(set_.exchange, exchange_);
    replace(set_.grouped_mlp, mlp_);
    replace(set_.head_loss, head_);
    replace(set_.elementwise, elementwise_);
    replace(set_.adamw, adamw_);
    return set_;
  }
  std::unique_ptr<Communicator> make_communicator(const std::string& name, std::span<const int> ranks,
                                                  Rendezvous& rendezvous) override {
    return host_->make_communicator(name, ranks, rendezvous);
  }

 private:
  template <class Operator>
  static void replace(Operator*& place, Widened<Operator>& by) {
    by.inner = place;
    place = &by;
  }
  std::unique_ptr<Backend> host_;
  WidenedEmbedding embedding_;
  WidenedNorm norm_;
  WidenedLinear linear_;
  WidenedAttention attention_;
  WidenedRouter router_;
  WidenedPermute permute_;
  WidenedExchange exchange_;
  WidenedMlp mlp_;
  WidenedHead head_;
  WidenedElementwise elementwise_;
  WidenedAdamW adamw_;
  OperatorSet set_;
};

}  // namespace

ANANKE_PLUGIN(Backend, RoundingBackend, plugin::RoundingBackend);

}  // namespace ananke
