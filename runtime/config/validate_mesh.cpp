// Meshes, and how rows are dealt to ranks and microbatches.
#include <algorithm>
#include <limits>

#include "ananke/job.pb.h"
#include "runtime/config/validate.h"
#include "runtime/config/validate_parts.h"

namespace ananke {
namespace {

// The largest divisor of `number` that is no larger than `limit`.
std::uint64_t divisor_up_to(std::uint64_t limit, std::uint64_t number) {
  std::uint64_t best = 1;
  for (std::uint64_t i = 1; i * i <= number; ++i) {
    if (number % i != 0) continue;
    for (const std::uint64_t divisor : {i, number / i}) {
      if (divisor <= limit) best = std::max(best, divisor);
    }
  }
  return best;
}

}  // namespace

std::uint64_t effective_shard(const Mesh& mesh, std::uint64_t ranks) {
  if (mesh.shard() != 0) return mesh.shard();
  if (mesh.expert_shard() != 0) return std::uint64_t{mesh.expert_shard()} * mesh.expert();
  return mesh.replicate() == 0 || ranks % mesh.replicate() != 0 ? 0 : ranks / mesh.replicate();
}

std::uint64_t ranks_of(const Mesh& mesh) {
  const std::uint64_t shard = effective_shard(mesh, 0);
  return mesh.replicate() * (shard != 0 ? shard : mesh.expert());
}

Problems check_mesh(const Mesh& mesh, std::uint32_t ranks) {
  Problems problems;
  const std::uint64_t experts = mesh.expert(), product = mesh.expert_shard() * experts;
  if (mesh.shard() != 0 && mesh.expert_shard() != 0 && mesh.shard() != product) {
    add(&problems, "mesh.expert_shard",
        "is {}, and expert_shard {} x expert {} makes a shard of {}, but mesh.shard is {}; leave one of them out or "
        "make "
        "them agree",
        mesh.expert_shard(), mesh.expert_shard(), experts, product, mesh.shard());
    return problems;
  }
  const std::uint64_t shard = effective_shard(mesh, ranks);
  if (mesh.shard() == 0 && mesh.expert_shard() != 0) {
    if (mesh.replicate() * shard != ranks) {
      add(&problems, "mesh.expert_shard",
          "is {}, and replicate {} x expert_shard {} x expert {} makes {} ranks, but the job has {}; change the mesh "
          "or "
          "--ranks",
          mesh.expert_shard(), mesh.replicate(), mesh.expert_shard(), experts, mesh.replicate() * shard, ranks);
    }
  } else if (mesh.shard() == 0) {
    if (shard == 0) {
      add(&problems, "mesh.replicate", "is {}, which does not divide the {} ranks; change it or --ranks",
          mesh.replicate(), ranks);
    }
  } else if (mesh.replicate() * shard != ranks) {
    add(&problems, "mesh.shard",
        "is {}, and replicate {} x shard {} makes {} ranks, but the job has {}; change the mesh or --ranks", shard,
        mesh.replicate(), shard, mesh.replicate() * shard, ranks);
  }
  if (problems.empty() && shard % experts != 0) {
    add(&problems, "mesh.expert",
        "is {}, which does not divide the shard axis of {} ranks ({} ranks / replicate {}); set it to a divisor, or "
        "shard "
        "to {}",
        experts, shard, ranks, mesh.replicate(), multiples_near(shard, experts));
  }
  return problems;
}

Problems check_expert_axis(const Mesh& mesh, const Model& model) {
  Problems problems;
  if (mesh.expert() > 1 && !has_moe_layer(model)) {
    add(&problems, "mesh.expert",
        "is {}, but none of the model's {} layers has experts (num_experts {}); set it to 1, and all {} ranks share "
        "the "
        "dense parameters as before",
        mesh.expert(), model.num_hidden_layers(), model.num_experts(), mesh.expert());
  }
  return problems;
}

// `microbatches`: of a rank in a step.
Problems check_gathers(const Training& training, std::uint32_t ranks, std::uint64_t microbatches) {
  Problems problems;
  const std::uint64_t asked = training.microbatches_per_gather();
  if (asked == 0 || microbatches % asked == 0) return problems;
  add(&problems, "training.microbatches_per_gather",
      "is {}, no divisor of the {} that each of {} ranks has in a step (rows_per_step {}, rows_per_microbatch {}); set "
      "it "
      "to {}, or to 0 for all of them",
      asked, microbatches == 1 ? "1 microbatch" : fmt::format("{} microbatches", microbatches), ranks,
      training.rows_per_step(),
      training.rows_per_microbatch() == 0 ? training.rows_per_step() / ranks : training.rows_per_microbatch(),
      divisor_up_to(asked, microbatches));
  return problems;
}

Problems check_rows(const Training& training, std::uint32_t ranks) {
  Problems problems;
  const std::uint32_t rows = training.rows_per_step();
  const std::uint64_t unit = std::uint64_t{ranks} * std::max(training.rows_per_microbatch(), 1u);
  if (rows % ranks != 0) {
    add(&problems, "training.rows_per_step", "is {}, no multiple of the {} ranks that share its rows; set it to {}",
        rows, ranks, multiples_near(rows, ranks));
  } else if (rows % unit != 0) {
    add(&problems, "training.rows_per_microbatch",
        "is {}, but each of {} ranks has {} rows of rows_per_step {}, no multiple of it; set rows_per_step to {}, or "
        "rows_per_microbatch to a divisor of {}",
        training.rows_per_microbatch(), ranks, rows / ranks, rows, multiples_near(rows, unit), rows / ranks);
  } else {
    append(&problems, check_gathers(training, ranks, training.rows_per_microbatch() == 0 ? 1 : rows / unit));
  }
  return problems;
}

Problems check_microbatches(const Training& training, const Model& model, std::uint32_t ranks) {
  Problems problems;
  const std::uint64_t rows = training.rows_per_step() / ranks, length = training.sequence_length();
  const std::uint64_t asked = training.rows_per_microbatch(), each = asked == 0 ? rows : asked;
  if (rows == 0 || each == 0 || rows % each != 0) return problems;  // check_rows says so
  constexpr std::uint64_t most_tokens = std::numeric_limits<std::int32_t>::max(), most_layers = 4'000'000;
  const std::uint64_t microbatches = rows / each, layers = model.num_hidden_layers();
  if (each * length > most_tokens) {
    add(&problems, "training.rows_per_microbatch",
        "is {}, and {} rows of {} tokens make a microbatch of {}; at most {} are served: set it to {}", asked, each,
        length, each * length, most_tokens, divisor_up_to(most_tokens / length, rows));
  } else if (microbatches * layers > most_layers) {
    add(&problems, "training.rows_per_microbatch",
        "is {}, and the {} rows that each of {} ranks has in a step make {} microbatches of {} layers; a step has at "
        "most {} of both multiplied: raise it, or use more ranks",
        asked, rows, ranks, microbatches, layers, most_layers);
  }
  return problems;
}

}  // namespace ananke
