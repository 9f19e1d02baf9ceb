// One implementation of each operator: what a model and an optimizer compute with. A backend offers all of them; a
// kernels plugin may replace some.
#pragma once

#include "runtime/operators/adamw.h"
#include "runtime/operators/add_rms_norm.h"
#include "runtime/operators/attention.h"
#include "runtime/operators/elementwise.h"
#include "runtime/operators/embedding.h"
#include "runtime/operators/exchange.h"
#include "runtime/operators/grouped_mlp.h"
#include "runtime/operators/head_loss.h"
#include "runtime/operators/linear.h"
#include "runtime/operators/momentum.h"
#include "runtime/operators/newton_schulz.h"
#include "runtime/operators/permute.h"
#include "runtime/operators/router.h"
#include "runtime/operators/router_balance.h"
#include "runtime/operators/wire.h"

namespace ananke {

// Not owned; all set in what a backend offers.
struct OperatorSet {
  Embedding* embedding = nullptr;
  AddRmsNorm* add_rms_norm = nullptr;
  Linear* linear = nullptr;
  Attention* attention = nullptr;
  Router* router = nullptr;
  RouterBalance* router_balance = nullptr;
  Permute* permute = nullptr;
  Exchange* exchange = nullptr;
  GroupedMlp* grouped_mlp = nullptr;
  HeadLoss* head_loss = nullptr;
  Elementwise* elementwise = nullptr;
  AdamWUpdate* adamw = nullptr;
  Momentum* momentum = nullptr;
  NewtonSchulz* newton_schulz = nullptr;
  Wire* wire = nullptr;
};

}  // namespace ananke
