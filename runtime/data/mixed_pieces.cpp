#include "runtime/data/mixed_pieces.h"

#include <cmath>

#include "runtime/base/error.h"

namespace ananke {
namespace {

void check(std::span<const PackingSource> sources) {
  if (sources.empty()) fail(ErrorKind::config, "packing has no source of documents; name a token store");
  const auto tokenizer = [](const DocumentSource& documents) {
    const std::string name = documents.tokenizer();
    return name.empty() ? "no tokenizer" : name;
  };
  const std::string first = tokenizer(*sources[0].documents);
  for (const PackingSource& source : sources) {
    const DocumentSource& documents = *source.documents;
    if (!std::isfinite(source.weight) || source.weight <= 0) {
      fail(ErrorKind::config,
           "{} has the weight {}, but a share of the tokens needs a number above 0; leave it out or set another",
           documents.name(), source.weight);
    }
    if (documents.targets() == 0) {
      fail(ErrorKind::data, "{} has {} documents, none of two tokens or more: there is nothing to predict in it",
           documents.name(), documents.documents());
    }
    if (const std::string mine = tokenizer(documents); mine != first) {
      fail(ErrorKind::config,
           "{} is of {}, but {} of {}: the same number would mean different text; import both with one tokenizer",
           sources[0].documents->name(), first, documents.name(), mine);
    }
  }
}

}  // namespace

MixedPieces::MixedPieces(std::vector<PackingSource> sources, std::uint64_t seed, std::uint32_t row_length)
    : sources_(std::move(sources)), drawn_(sources_.size(), 0) {
  check(sources_);
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    weights_ += sources_[i].weight;
    pieces_.emplace_back(*sources_[i].documents, seed, fmt::format("source {}", i), row_length);
  }
  choose();
}

void MixedPieces::choose() {
  std::uint32_t least = 0;
  const auto behind = [&](std::uint32_t i) { return static_cast<double>(drawn_[i]) / sources_[i].weight; };
  for (std::uint32_t i = 1; i < pieces_.size(); ++i) {
    if (behind(i) < behind(least)) least = i;
  }
  piece_ = pieces_[least].current();
  piece_.source = least;
}

void MixedPieces::advance() {
  drawn_[piece_.source] += piece_.count;
  pieces_[piece_.source].advance();
  choose();
}

std::vector<MixedPieces::Place> MixedPieces::places() const {
  std::vector<Place> places;
  for (std::size_t i = 0; i < pieces_.size(); ++i) places.push_back({pieces_[i].place(), drawn_[i]});
  return places;
}

bool MixedPieces::seek(std::span<const Place> places) {
  const std::vector<Place> before = this->places();
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    if (pieces_[i].seek(places[i].at)) continue;
    for (std::size_t back = 0; back < i; ++back) pieces_[back].seek(before[back].at);
    return false;
  }
  for (std::size_t i = 0; i < pieces_.size(); ++i) drawn_[i] = places[i].drawn;
  choose();
  return true;
}

}  // namespace ananke
