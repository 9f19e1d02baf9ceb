#include "runtime/roles/backend.h"

#include "faulty_backend.pb.h"
#include "runtime/engine/inner_role.h"
#include "runtime/plugin/descriptor.h"
#include "tests/system/faulty/misbehave.h"

namespace ananke {
namespace {

class FaultyLinear final : public Linear {
 public:
  FaultyLinear(const Trouble& trouble, Linear& inner) : trouble_(trouble), inner_(inner) {}
  void forward(Stream& stream, const Forward& a) override {
    trouble_.enter("linear.forward", stream);
    inner_.forward(stream, a);
  }
  void backward(Stream& stream, const Backward& a) override { inner_.backward(stream, a); }

 private:
  const Trouble& trouble_;
  Linear& inner_;
};

class FaultyRouter final : public Router {
 public:
  FaultyRouter(const Trouble& trouble, Router& inner) : trouble_(trouble), inner_(inner) {}
  std::size_t saved(const Sizes& s) const override {
    return trouble_.is("router.saved", "huge") ? std::size_t{1} << 60 : inner_.saved(s);
  }
  std::size_t workspace(const Sizes& s) const override { return inner_.workspace(s); }
  void forward(Stream& stream, const Forward& a) override { inner_.forward(stream, a); }
  void backward(Stream& stream, const Backward& a) override { inner_.backward(stream, a); }

 private:
  const Trouble& trouble_;
  Router& inner_;
};

class FaultyBackend final : public Backend {
 public:
  FaultyBackend(const RoleContext& context, const plugin::FaultyBackend& config)
      : trouble_(context, config), inner_(make_inner<Backend>("backend_host", context)) {}
  Device& device() override {
    trouble_.enter("device");
    return inner_->device();
  }
  const OperatorSet& operators() override {
    trouble_.enter("operators");
    set_ = inner_->operators();
    linear_ = std::make_unique<FaultyLinear>(trouble_, *set_.linear);
    router_ = std::make_unique<FaultyRouter>(trouble_, *set_.router);
    set_.linear = trouble_.is("operators", "few") ? nullptr : linear_.get();
    set_.router = router_.get();
    return set_;
  }
  std::unique_ptr<Communicator> make_communicator(const std::string& name, std::span<const int> ranks,
                                                  Rendezvous& rendezvous) override {
    trouble_.enter("make_communicator");
    if (trouble_.is("make_communicator", "nothing")) return nullptr;
    if (trouble_.is("make_communicator", "lonely")) ranks = ranks.subspan(ranks[0] == rendezvous.rank() ? 0 : 1, 1);
    return inner_->make_communicator(name, ranks, rendezvous);
  }

 private:
  Trouble trouble_;
  std::unique_ptr<Backend> inner_;
  OperatorSet set_;
  std::unique_ptr<Linear> linear_;
  std::unique_ptr<Router> router_;
};

}  // namespace

ANANKE_PLUGIN(Backend, FaultyBackend, plugin::FaultyBackend);

}  // namespace ananke
