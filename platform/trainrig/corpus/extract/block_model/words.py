"""Words typical of navigation and other furniture of pages, by topic, in the most common languages.

"Share this article" and a sentence about shares differ only by the block's length and position as
well; the trees combine these.
"""

from typing import Final

# Lower case, letters and digits only: "e-mail" is read as two words.
TOPICS: Final[dict[str, str]] = {
    "share": """
        share shares shared tweet facebook twitter whatsapp pinterest instagram linkedin telegram
        reddit tumblr flipboard email mail print pdf follow like likes gefällt teilen drucken
        weiterleiten partager imprimer suivez compartir compartilhar imprimir síguenos condividi
        stampa delen udostępnij поделиться rss feed youtube xing pocket messenger copy link
    """,
    "comment": """
        comment comments reply replies respond discussion forum login log sign register registrieren
        anmelden kommentar kommentare kommentieren antworten commentaire commentaires répondre
        connexion comentario comentarios responder comentar commenti rispondi reacties komentarze
        комментарии ответить report abuse moderated disqus username password
    """,
    "related": """
        related recommended similar more also popular trending latest next previous prev read see
        mehr auch weitere weiterlesen lesen ähnliche beliebt neueste thema vorheriger nächster
        aussi lire suivant précédent articles similaires más también leer relacionado relacionadas
        anterior siguiente leia mais veja leggi anche altri lees ook czytaj także читайте также
        stories story sponsored promoted
    """,
    "byline": """
        by author authors posted published publish updated update modified written editor staff
        reporter correspondent von autor autorin redaktion veröffentlicht aktualisiert stand uhr par
        publié mis jour auteur rédaction por publicado actualizado redacción autore pubblicato door
        autor opublikowano автор min minutes minuten read ago gmt utc cet est pm am
    """,
    "photo": """
        photo photos photograph picture image images getty reuters afp dpa ap imago shutterstock
        unsplash pixabay flickr courtesy credit credits caption foto fotos bild bilder quelle
        bildquelle copyright symbolbild gallery galerie video crédit légende imagen fuente cortesía
        imagem immagine zdjęcie фото source illustration screenshot play watch
    """,
    "legal": """
        copyright rights reserved privacy policy terms conditions use cookies cookie disclaimer
        imprint impressum datenschutz datenschutzerklärung agb nutzungsbedingungen rechte
        vorbehalten mentions légales droits réservés confidentialité derechos reservados privacidad
        aviso direitos diritti riservati prawa zastrzeżone consent accept akzeptieren javascript
        browser enable license licensed contact kontakt contacto
    """,
    "subscribe": """
        subscribe subscription subscribers newsletter newsletters signup free trial account premium
        abo abonnieren abonnement kostenlos jetzt testen bestellen abonnez inscrivez inscription
        suscríbete suscribirse boletín assine iscriviti rejestracja подпишитесь download app shop
        buy cart order price offer donate donation support advertisement advertising anzeige werbung
        publicité publicidad ad ads sponsor affiliate
    """,
    "navigation": """
        home menu search skip top back page pages archive archives category categories tag tags
        filed under section sections sitemap about navigation startseite suche menü nach oben zurück
        seite kategorie kategorien schlagwörter accueil recherche retour catégorie étiquettes inicio
        buscar volver categoría categorías etiquetas cerca categoria view views all show hide click
        here close loading toggle edit
    """,
}
