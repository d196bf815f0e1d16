"""The public names, by where they live; `__init__.py` loads each on first use."""

from .compressor import Compressor as Compressor
from .compressor import compressor_parents as compressor_parents
from .compressor import load_compressor as load_compressor
from .decoder.weights import LoadedDecoder as LoadedDecoder
from .decoder.weights import load_decoder as load_decoder
from .decoder.weights import save_decoder as save_decoder
from .encoder.embedder import TextEmbedder as TextEmbedder
from .encoder.embedder import make_embedder as make_embedder
from .encoder.weights import LoadedEncoder as LoadedEncoder
from .encoder.weights import load_encoder as load_encoder
from .encoder.weights import save_encoder as save_encoder
from .tagger.predict import make_tagger_points as make_tagger_points
from .tagger.tagger import Tagger as Tagger
from .tagger.tagger import load_tagger as load_tagger
from .towers.latent import LatentConfig as LatentConfig
from .towers.latent import make_latent_network as make_latent_network
from .towers.positions import chunk_positions as chunk_positions
from .towers.positions import relative_positions as relative_positions
from .towers.q_network import Network as Network
from .towers.text import make_text_network as make_text_network
